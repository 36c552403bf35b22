"""Committed results of studies."""
