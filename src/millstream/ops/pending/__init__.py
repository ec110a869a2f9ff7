"""Queries about pending entries and changes of them."""
