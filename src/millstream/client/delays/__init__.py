"""Delayed entries of a consumer group: when each is due, and the script that keeps it out of reach until then."""
