"""The outbox: entries that a transaction of a SQL database writes as rows, and the relay that adds them to streams."""
