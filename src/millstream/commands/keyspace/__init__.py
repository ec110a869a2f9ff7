"""Commands on keys and on values other than streams: strings and their bits, hashes, sorted sets, lists, sets, places.

They are here because clients, scripts and tools of streams use them (counters, locks, due times, receipts), and follow
Redis in replies, errors, events and counts; ``limited`` in a row says what of a command is not there. ``collections``
has what the four families of collections share.
"""
