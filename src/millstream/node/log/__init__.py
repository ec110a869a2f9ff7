"""What a node has in its log: records, snapshots, and the rewriting that makes one of the other."""
