"""Recorders, defenses and guards for Flower and NVFlare."""
