"""The page of claims, from claims and records; `docs/claims.py` is its command."""
