"""Handwritten digits, learned by federated averaging with Flower and PyTorch."""
