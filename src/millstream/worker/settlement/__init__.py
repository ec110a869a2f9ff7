"""Settlement: the server stores the outcome of an entry, once, and only if this worker still owns the entry.

Read in this order: ``consumer`` (an entry in this process, and its consumer) and ``settlement`` (the decision about one
entry). Then ``fence`` (acts on owned entries only) and ``acks`` (keeps settlements until they are confirmed). Then read
``dead_letter`` (dead entries), ``failure_log`` (tells a crash from a failure) and ``leases`` (renews held entries).
``fence_scripts`` has the script on the server.

Nothing here depends on handlers or decides: decisions come in as settlements and leave as commands.
"""
