"""Commands on keys and on values other than streams: strings, bits, hashes, sorted sets, lists, sets, geo.

Clients, scripts and tools use these commands next to streams (counters, locks, due times, receipts). Replies, errors,
events and counts follow Redis. The ``limited`` field of a command's row names its missing parts. ``collections`` has
the parts that hashes, sorted sets, lists and sets share.
"""
