"""Evaluation of a measured run: estimates and controls from measurements and the ground truth."""
