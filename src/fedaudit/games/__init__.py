"""Studies of security games: how often a server that plants neurons tells who was in a batch."""
