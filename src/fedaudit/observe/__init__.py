"""Rounds, views of adversaries, measurements of signals, and their files on disk."""
