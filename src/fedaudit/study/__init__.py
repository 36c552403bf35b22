"""A study: from one TOML file to one record."""
