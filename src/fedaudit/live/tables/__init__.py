"""Recordings made from tables of signals that were measured elsewhere."""
