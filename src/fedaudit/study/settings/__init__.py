"""Settings of a study: what a TOML file or objects may say, checked."""
