"""The primary's side of replication: ``making`` makes copies, ``replicas`` sends them and the stream."""
