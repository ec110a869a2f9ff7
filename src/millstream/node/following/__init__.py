"""The replica's side of a node: its primary, its position in the stream, and the relay to its own replicas.

``role`` has the primary and the state of the link, ``relay`` stores the bytes that the primary sends; ``node/obeying``
runs them.
"""
