"""How what is in an entry is shown and searched: JSON, MessagePack, the workers' envelope, text, hex. PURE.

Read ``decode`` (one value), ``entry`` (all of an entry, as a handler would get it), then ``conditions`` and ``grammar``
(which entries are wanted), and ``choice``, which joins these. ``editing`` makes a document of an entry that a person
may change, and an entry of that.

Whatever is decoded here was written by strangers: no input raises, and none costs more than its size allows.
"""
