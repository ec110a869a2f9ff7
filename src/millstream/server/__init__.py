"""The asyncio shell over the node: listeners, sessions, flow control, shutdown; no rule of streams lives here.

In the order to read them: ``settings`` (what a server is started with), ``app`` (the server), ``connection`` (one
client), ``committer`` (the log's writes and syncs), ``accepting`` and ``listener`` (who is let in, and where), ``tls``.
``process`` and ``thread`` are the two ways to run it; ``machine`` and ``rates`` are what only INFO asks for.
"""
