"""Evaluation of a measured run: figures and controls from measurements and the ground truth."""
