"""Architectures, one a file, and the dictionary of them."""
