"""Delayed entries of a consumer group: their due times, and the script that keeps them from being claimed too early."""
