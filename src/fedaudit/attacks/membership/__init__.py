"""Rules that score membership: FedMIA and what it is compared with."""
