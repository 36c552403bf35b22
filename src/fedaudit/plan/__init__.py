"""Plan of a study: settings, checked, and the parts of a run that they name."""
