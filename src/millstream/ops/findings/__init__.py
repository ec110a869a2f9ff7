"""Findings: problems that a person should look at."""
