"""What a client can do about leakage, one defense a file."""
