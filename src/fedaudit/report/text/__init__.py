"""Verdicts and findings in sentences, a module a topic."""
