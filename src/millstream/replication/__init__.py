"""A primary's messages to its replicas, and its knowledge of them. PURE: no I/O, no clock, no chance.

The stream is Redis's own, so that Redis can follow: the log's transitions become commands that Redis 7.0 and everything
newer knows (decision 51).

``words`` makes commands of a transition, and ``units`` bytes of one record. ``backlog`` keeps these bytes, and
``followers`` is the list of replicas. ``handshake`` has a replica's words to its primary, and ``received`` cuts the
primary's stream into units again.
"""
