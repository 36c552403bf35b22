"""What an audit found: estimates, records of them, and all that is calculated on records."""
