"""Where clients train and samples are measured."""
