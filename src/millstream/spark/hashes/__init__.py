"""Hashes as a table to join with: a row for each hash whose key matches a glob, its fields as columns.

``options`` checks what was asked for, ``source`` is what Spark calls, ``reader`` scans and asks. Keys are looked for by
the tasks and not at planning: Spark plans a table once for all batches of the query that joins it, and hashes that came
since have to be found.
"""
