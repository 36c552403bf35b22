"""Data sets that need no file, one in each module."""
