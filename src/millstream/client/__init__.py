"""Connections to any server that speaks Redis Streams: the only part that opens them.

``url`` checks and names servers, ``connect`` makes redis-py clients, and ``line`` is one shared asyncio connection.
``capabilities`` finds the commands that a server supports, and ``emulate`` has substitutes for missing ones.
"""
