"""Recordings made from the checkpoints that a federation saved."""
