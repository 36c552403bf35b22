"""From settings to the parts of one run: data, algorithm, defenses, adversary, attacks."""
