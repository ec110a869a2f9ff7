"""Values as bytes and back: DUMP payloads of ours and of Redis, snapshots of a keyspace. PURE."""
