"""Extensions of a study: what each of its optional tables adds to every run."""
