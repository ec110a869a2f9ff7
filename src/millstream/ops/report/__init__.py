"""The support report: its collection and redaction."""
