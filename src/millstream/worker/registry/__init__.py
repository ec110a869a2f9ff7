"""Who works: the keys in the server that say so, heartbeats, pauses, consumers that are gone."""
