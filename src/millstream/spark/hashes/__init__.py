"""Hashes as a table to join with: a row for each hash with a key that matches a glob, and its fields as columns.

``options`` checks the options, Spark calls ``source``, and ``scan`` finds keys and reads hashes. The tasks scan
for keys, not the driver: Spark plans a table once for all batches of the query that joins it, and later hashes must be
found too.
"""
