"""Exports of evidence packs to the formats of other tools."""
