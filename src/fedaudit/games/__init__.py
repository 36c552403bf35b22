"""Studies of security games (AMI): a server plants a neuron to infer which records are in a batch.

In a *game*, the server gives a verdict whether its target record is in a client's batch. A *point*
is a setting of a study, its variant or its grid, for which many games are played.
"""
