"""The page of claims, from claims and results; `docs/claims.py` is its command."""
