"""Limits of the whole fleet, as the server keeps them."""
