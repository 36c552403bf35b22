"""Hubs that data sets are loaded from by name, one a file."""
