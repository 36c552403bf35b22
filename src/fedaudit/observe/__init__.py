"""Rounds as an adversary sees them, and their files on disk."""
