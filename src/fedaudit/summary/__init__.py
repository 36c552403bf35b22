"""Summaries of one or two pages that are signed and shared."""
