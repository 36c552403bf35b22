"""What an adversary sees of a run, and how it is kept on disk."""
