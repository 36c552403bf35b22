"""Live pages on audits that are running, and an index of results."""
