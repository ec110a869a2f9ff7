"""Servers that are found by asking others: a cluster's nodes, and the master that Sentinels name."""
