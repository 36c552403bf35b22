"""Audit draws: the audited samples, their owners, and data for attacks that learn."""
