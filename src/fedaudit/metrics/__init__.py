"""From scores and the truth to figures with intervals."""
