"""The content of an entry, shown and searched: JSON, MessagePack, the workers' envelope, text, hex. PURE.

Read ``decode`` (one value), ``entry`` (all of an entry, as a handler would get it), then ``conditions`` and ``grammar``
(the choice of entries), and ``choice``, which joins these. ``editing`` makes a document of an entry that a person may
change, and an entry of that.

Everything decoded here was written by strangers: no input raises, and none costs more than its size allows.
"""
