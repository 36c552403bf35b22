"""File formats of data sets, one in each module."""
