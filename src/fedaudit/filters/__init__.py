"""Whether a privacy filter does what is said of it: :func:`fedaudit.filters.check.check_dp`."""
