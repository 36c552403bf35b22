"""Signals: values that an adversary measures for every round, client and sample."""
