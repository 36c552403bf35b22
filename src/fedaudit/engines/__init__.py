"""Engines: processes and machines on which clients train and samples are measured."""
