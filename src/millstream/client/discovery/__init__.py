"""Servers that are found by asking others: a cluster's nodes, and the master that Sentinels name.

On a cluster, a worker has its own connections for each stream, to the node that has its slot. The cluster client of
redis-py does not give the order, blocking and transactions that a worker needs. A redirection breaks such a connection,
so a slot that moves is handled like a lost connection.
"""
