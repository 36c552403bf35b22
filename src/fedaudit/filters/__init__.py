"""Audit of a privacy filter against its declaration: :func:`fedaudit.filters.check.check_dp`."""
