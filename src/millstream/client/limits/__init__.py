"""Limits that all workers together keep, as the server stores them."""
