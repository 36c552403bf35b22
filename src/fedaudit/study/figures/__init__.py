"""From measurements and the truth to the figures of one run."""
