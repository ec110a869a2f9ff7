"""Redis's own form of values: payloads of DUMP, and whole RDB files, read and written. PURE.

* ``payload``: the payload that DUMP of Redis and Valkey replies, for RESTORE.
* ``reading``: an RDB file as the keys in it; ``writing``: a keyspace as an RDB file, ``written_streams`` its streams.
* ``values``, ``streams`` and ``small``: the value of a key, by the number of its type; ``unheld`` skips other types.
* ``sizes``: numbers and sizes in the bytes, from front to end; ``bulk``: the slow parts, which have doubles in C.

Input is not trusted. This package or :mod:`millstream.engine.serialization.dump` checks sizes, counts, order and
duplicates, and refuses anything that breaks a rule. Redis and Valkey number their types differently. Those up to 21 are
the same; those above are Redis's, or Valkey's if the version is 80 or more.

Source: the formats as these files describe them. Redis has rdb.h, rdb.c, t_stream.c, listpack.c, ziplist.c, zipmap.c,
intset.c, crc64.c and lzf_d.c. Valkey has rdb.h.
"""
