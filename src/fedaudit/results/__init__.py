"""Results of an audit: estimates, records of them, and all that is calculated on records."""
