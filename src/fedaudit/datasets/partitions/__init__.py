"""Partitions: which client trains on which samples, and how clients' data differ."""
