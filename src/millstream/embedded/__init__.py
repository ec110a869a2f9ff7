"""The engine inside the caller's process, under redis-py's own clients: ``memory://`` and ``file:///dir``, no socket.

``place`` reads such a URL, and ``stores`` knows the open ones of this process. ``store`` is one of them: a node, its
log and a thread for due work. ``channel`` is one connection's bytes. ``sync`` and ``aio`` are redis-py's two kinds of
connection over a channel, ``short`` is its blocking client with fewer steps between, and ``direct`` works without
redis-py. Only ``millstream.client`` and ``millstream.testing`` import this part, and ``millstream`` itself for the
public name.
"""
