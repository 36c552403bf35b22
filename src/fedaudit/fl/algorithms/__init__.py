"""Federated algorithms, one a file, and their catalogue."""
