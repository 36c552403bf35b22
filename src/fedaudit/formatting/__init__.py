"""Wording and layout that terminal output, reports, summaries and verdicts share."""
