"""Studies of security games (AMI): a server plants a neuron to infer which samples are in a batch.

In a *game*, the server infers whether its target sample is in a client's batch. A *point* is a
combination of settings, from a study or from its variants or grid, for which many games are played.
"""
