"""Hashes as a table to join with: a row for each hash whose key matches a glob, its fields as columns.

``options`` checks what was asked for, ``source`` is what Spark calls, ``scan`` looks for keys and asks. The tasks look
for keys, not the planning: Spark plans a table once for all batches of the query that joins it, and hashes that came
since have to be found.
"""
