"""Settlement: what becomes of an entry is stored by the server, once, and only if the entry is still ours.

Read in this order: ``consumer`` (an entry in hand, and our name) and ``settlement`` (the decision about one entry).
Then ``fence`` (acts on our entries only) and ``acks`` (keeps settlements until they are confirmed). Then read
``dead_letter`` (dead entries), ``failure_log`` (tells a crash from a failure), ``leases`` (keeps held entries ours).
``ack_command`` and ``fence_scripts`` are words on the wire.

Nothing here knows a handler, and nothing decides: decisions come in as settlements and leave as commands.
"""
