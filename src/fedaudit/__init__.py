"""fedaudit measures how much a federated-learning run gives away about who was in it."""

__version__ = "0.1.0"
