"""Measurements of kernels, whole runs and intervals.

This file makes the folder a regular package. Other packages (Opacus) install a package with the
name ``benchmarks``, which would take precedence over a folder without this file.
"""
