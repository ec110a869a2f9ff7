"""Worker processes: one of them, their supervisor, start and end.

``start`` waits for a server that is not there yet, ``run`` is one process from its first signal handler to its exit
code, and ``supervisor`` keeps several of them alive. ``senders`` finds out which signals a process sent to itself. They
know an app only by protocols; what finds one by its name is ``millstream.worker.child``.
"""
