"""The outbox of a SQL database: entries published as part of a transaction (extra ``outbox``).

``add`` inserts a row in the caller's transaction. A relay (``millstream outbox relay``, or ``app.outbox(engine)``) adds
the entries of committed rows to their streams, once each. See docs/worker/outbox.md.
"""

from millstream.worker.outbox.rows import add, create, insert, table

__all__ = ["add", "create", "insert", "table"]
