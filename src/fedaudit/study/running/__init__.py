"""Carrying a study out: train, measure, keep, resume, attack again, write the record."""
