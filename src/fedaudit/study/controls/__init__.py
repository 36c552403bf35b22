"""Controls: checks that attacks find what is there, and nothing where nothing is."""
