"""How drivers and tasks talk to servers: sockets, pipelines, routing in clusters, reading in bulk."""
