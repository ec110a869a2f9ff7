"""Limits of the whole fleet, as one worker obeys them."""
