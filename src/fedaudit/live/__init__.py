"""Recordings of federations that fedaudit does not train, and attacks on them."""
