"""Federated training as a stream of rounds."""
