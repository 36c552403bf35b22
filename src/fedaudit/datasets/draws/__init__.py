"""Audit draws: which samples are audited, who trained on them, and data for attacks that learn."""
