"""Contracts of attacks, defenses, algorithms and partitions, which `fedaudit check-part` runs."""
