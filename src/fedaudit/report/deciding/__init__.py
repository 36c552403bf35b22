"""Decisions about a record that its headline, tiles, pictures, terminal and gate share."""
