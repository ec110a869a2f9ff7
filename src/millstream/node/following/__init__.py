"""The replica's side of a node: whom it follows, what of the stream it has run, what it tells its own replicas.

``role`` knows the primary and how the link to it is, ``relay`` keeps the bytes that it sends; ``node/obeying`` runs
them.
"""
