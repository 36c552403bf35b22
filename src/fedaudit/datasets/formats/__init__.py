"""File formats that data sets come in, one a file."""
