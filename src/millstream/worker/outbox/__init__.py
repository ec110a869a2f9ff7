"""The outbox: a transaction of a SQL database writes entries as rows, and a relay adds them to their streams."""
