"""The engine inside the caller's process, below redis-py's clients: ``memory://`` and ``file:///dir``, no socket.

``place`` parses such a URL, and ``stores`` keeps the open stores of this process. ``store`` is one store: a node, its
log, its connections and a thread for due work. ``sync`` and ``aio`` connect redis-py's blocking and asyncio clients to
a store, and ``direct`` works without redis-py. Only ``millstream.client`` and ``millstream.testing`` import this part,
and ``millstream`` itself for the public name.
"""
