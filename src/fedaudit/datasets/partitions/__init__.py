"""Partitions of the training samples among clients, and differences between clients' data."""
