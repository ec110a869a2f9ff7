"""Settlement: what becomes of an entry is stored by the server, once, and only if the entry is still ours.

Read in this order: ``consumer`` (an entry in hand, and who we are), ``settlement`` (the decision about one entry),
``fence`` (acts on entries that are ours, and on no others), ``acks`` (keeps settlements until they are confirmed),
``dead_letter`` (those that are dead), ``failure_log`` (what tells a crash from a failure), ``leases`` (what is held
stays ours). ``ack_command`` and ``fence_scripts`` are words on the wire.

Nothing here knows a handler, and nothing decides: decisions come in as settlements and leave as commands.
"""
