"""Redis's own form of values: payloads of DUMP, and whole RDB files, read and written. PURE.

* ``payload``: what DUMP of Redis and Valkey answers, for RESTORE.
* ``reading``: an RDB file as the keys in it; ``writing``: a keyspace as an RDB file, ``written_stream`` its streams.
* ``values``, ``streams`` and ``small``: what a key holds, by the number of its type; ``unheld`` passes over the rest.
* ``source``: the bytes, from front to end; ``bulk``: what takes time, which has doubles in C.

Nothing that is read is believed: sizes, counts, order and duplicates are checked here or in
:mod:`millstream.engine.serialization.dump`, and what breaks a rule is refused. Two servers number their types apart:
those up to 21 are the same, those above are Redis's, or Valkey's where the version is 80 or more.

Source: the formats as rdb.h, rdb.c, t_stream.c, listpack.c, ziplist.c, zipmap.c, intset.c, crc64.c and lzf_d.c of Redis
and rdb.h of Valkey describe them.
"""
