"""Python interface: audits of federations, games and attacks that are Python objects."""
