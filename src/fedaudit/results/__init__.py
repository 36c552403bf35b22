"""Results of audits: estimates, records of them, and computations on records."""
