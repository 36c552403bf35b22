"""Public results in notebooks and as short texts."""
