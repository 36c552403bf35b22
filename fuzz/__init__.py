"""Fuzzing of the readers of untrusted files, which may raise no errors except fedaudit's."""
