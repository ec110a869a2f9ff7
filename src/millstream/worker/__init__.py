"""The worker runs functions for the entries of streams. Every entry ends acked, pending for another try, or dead.

Rooms, each importing only those above it (``app`` and the modules beside it join them all):

* ``model/`` is PURE: the possible events of an entry (``lifecycle``), and the decision after a failure (``retry``).
* ``settlement/`` stores the outcomes of entries, and lets only the owner of an entry store one.
* ``handlers/`` is the user's function: its arguments, its middlewares, and its outcome.
* ``subscriber/`` reads entries and runs handlers for them; begin with ``loop``.
* ``middlewares/`` come with the package: tracing, metrics, log context.
* ``registry/`` reports workers to the server, and reads pauses and commands from it.
* ``monitoring/`` replies to health checks and to Prometheus.
* ``process/`` runs an app as a process, and keeps several of them alive.

Users see ``app``; ``registering`` and ``publishing`` are its parts. ``millstream run`` starts ``child``.
"""
