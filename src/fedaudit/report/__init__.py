"""Reports for people, made from records alone."""
