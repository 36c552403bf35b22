"""Membership risk of a model, as a server or a client can measure it."""
