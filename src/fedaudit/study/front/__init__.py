"""Audits of objects: federations and attacks of the caller's own in place of a file."""
