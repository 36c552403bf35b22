"""Values, refusals, files and randomness that every other part of fedaudit builds on."""
