"""Rules that score membership: FedMIA and the attacks that it is compared with."""
