"""The asyncio shell over the node: listeners, sessions, flow control, shutdown. It has no semantics of streams.

Read ``settings`` (the settings of a server), ``app`` (the server), ``connection`` (one client), then ``committer`` (the
log's writes and syncs). Then ``accepting`` and ``listener`` (new connections, and the addresses), and ``tls``.
``process`` and ``thread`` are the two ways to run it; only INFO uses ``machine`` and ``rates``.
"""
