"""One small door to any server that speaks Redis Streams.

``url`` makes redis-py clients with timeouts that suit blocking reads, ``line`` is one shared asyncio connection.
``capabilities`` finds the abilities of a server, ``emulate`` has the commands in place of missing ones.
"""
