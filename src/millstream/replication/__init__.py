"""What a primary tells its replicas, and what it knows of them. PURE: no I/O, no clock, no chance.

The stream is Redis's own, so that Redis follows: what the log calls transitions is said in commands that Redis 7.0 and
everything newer knows. See docs/decisions/0051-replicas-are-sent-commands.md.

``words`` makes commands of a transition, ``units`` bytes of what one record holds; ``backlog`` keeps these bytes, and
``followers`` is the list of replicas. ``handshake`` is what a replica says to its primary, and ``received`` cuts what
that sends into units again.
"""
