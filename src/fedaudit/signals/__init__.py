"""Numbers that an adversary measures for every (round, client, sample)."""
