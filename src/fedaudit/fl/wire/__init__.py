"""Clients' turns and whole runs as bytes: on a wire to other machines, or in a checkpoint."""
