"""A primary's messages to its replicas, and the list of replicas with their states. PURE: no I/O, no clock, no chance.

The stream is Redis's own, so that Redis can follow: the log's transitions become commands of Redis 7.0, which all newer
versions support (decision 51).

``words`` turns a transition into commands, and ``units`` one record into bytes. ``backlog`` keeps these bytes, and
``followers`` lists the replicas. ``handshake`` is a replica's side of the connection to its primary. ``received`` cuts
the primary's stream into units again.
"""
