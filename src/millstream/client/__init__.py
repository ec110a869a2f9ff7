"""One small door to any server that speaks Redis Streams.

``url`` makes redis-py clients with timeouts that suit blocking reads, ``line`` is one shared asyncio connection,
``capabilities`` finds what a server can do, ``emulate`` words what it cannot.
"""
