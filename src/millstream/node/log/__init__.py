"""The content of a node's log: records, snapshots, and the rewriting that makes snapshots of records."""
