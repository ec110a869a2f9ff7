"""Facts about streams, groups, consumers and pending entries, and the conclusions from them. PURE: no I/O, no clock.

``streams``, ``pending`` and ``entries`` are the facts, ``replies`` makes them of a server's replies. ``lag`` is a
group's lag, or the reason why it is unknown, ``rates`` compares two readings. ``workers``, ``letters`` and ``server``
are the facts from outside the streams, ``spark`` those of its queries and the archive.
"""
