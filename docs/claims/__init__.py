"""Build the page of claims from claims and results; the command is `docs/claims.py`."""
