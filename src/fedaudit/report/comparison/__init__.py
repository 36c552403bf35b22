"""Report of a comparison of records: trade-offs, tables and the first screen."""
