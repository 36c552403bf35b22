"""Rules that turn signals into membership scores, and the catalogue of attacks."""
