"""Membership risk of a model, as measured by a server or by a client."""
