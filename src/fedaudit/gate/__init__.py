"""A release gate: upper confidence limits of a record's figures against a policy's ceilings."""
