"""The support report."""
