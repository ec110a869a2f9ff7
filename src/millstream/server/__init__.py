"""The asyncio shell over the node: listeners, sessions, flow control, shutdown. It has no semantics of streams.

In the order to read them: ``settings`` (the settings of a server), ``app`` (the server), ``connection`` (one client),
``committer`` (the log's writes and syncs), ``accepting`` and ``listener`` (new connections, and the addresses),
``tls``. ``process`` and ``thread`` are the two ways to run it; only INFO uses ``machine`` and ``rates``.
"""
