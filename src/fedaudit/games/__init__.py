"""Studies of security games: how often a server that plants neurons infers who was in a batch."""
