"""Worker processes: a single process, its supervisor, start and end.

``start`` waits for a server that is not up yet. ``run`` is one process, from its first signal handler to its exit code.
``supervisor`` keeps several of them alive. ``senders`` finds out which signals a process sent to itself. These modules
use an app only by protocols; ``millstream.worker.child`` finds an app by its name.
"""
