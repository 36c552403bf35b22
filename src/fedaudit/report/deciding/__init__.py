"""Decisions about a record that headline, tiles, pictures, terminal output and gate share."""
