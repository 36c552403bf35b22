"""Evidence pack: a record, a policy's verdict on it, and hashes to check both."""
