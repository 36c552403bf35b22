"""Audits of federations and attacks that are Python objects."""
