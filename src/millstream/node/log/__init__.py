"""The content of a node's log: records, snapshots, and the rewriting of records into snapshots."""
