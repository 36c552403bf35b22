"""Data sets, how they are dealt to clients, and which samples are audited."""
