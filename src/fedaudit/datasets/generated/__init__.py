"""Data sets that need no file of the user's, one a file."""
