"""Hubs that data sets are loaded from by name, one in each module."""
