"""Execution of studies: training, measurement, storage, resumption, attacks and records."""
