"""The worker: functions run for the entries of streams; every entry ends acked, pending for another try, or dead.

Rooms, each importing only those above it (``app`` and what stands beside it join them all):

* ``model/`` is PURE: what may happen to an entry (``lifecycle``), what should (``retry``).
* ``settlement/`` stores what becomes of entries, so that only the owner of an entry has a say.
* ``handlers/`` is the user's function: its arguments, its middlewares, what its end means.
* ``subscriber/`` reads entries and runs handlers for them; read ``loop`` there to see it whole.
* ``middlewares/`` come with the package: tracing, metrics, log context.
* ``registry/`` tells the server who works, and hears pauses and orders.
* ``monitoring/`` answers those who watch: health, Prometheus.
* ``process/`` runs an app as a process, and keeps several of them alive.

``app`` is what users see; ``registering`` and ``publishing`` are its parts, ``child`` what ``millstream run`` starts.
"""
