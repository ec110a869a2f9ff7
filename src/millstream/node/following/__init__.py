"""The replica's side of a node: whom it follows, what of the stream it has run, what it tells its own replicas.

``role`` knows the primary and how the link to it is, ``obeying`` runs what it sends, ``relay`` keeps the bytes of that.
"""
