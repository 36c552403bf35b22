"""Records side by side in a report: trade-offs, tables and the first screen."""
