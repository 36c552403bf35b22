"""Shared values, errors, file access and random generators, on which all packages are built."""
