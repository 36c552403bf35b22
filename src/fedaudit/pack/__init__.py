"""An evidence pack: a record, what a policy says of it, and the hashes to check both by."""
