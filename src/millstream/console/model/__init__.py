"""Facts about streams, groups, consumers and pending entries, and what follows from them. PURE: no I/O, no clock.

``streams``, ``pending`` and ``entries`` are the facts, ``replies`` makes them of what a server answered. ``lag`` says
how far a group is behind, or why nobody can say, ``rates`` what two readings say. ``workers``, ``letters`` and
``server`` are the facts of what stands around the streams, ``spark`` those of its queries and the archive.
"""
