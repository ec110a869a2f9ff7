"""Commands for who runs the server: ACL, CONFIG, COMMAND, the text of INFO, MEMORY.

``info`` is a page made from facts and knows no server; node/facts.py gathers them. ``aclfile`` alone touches a disk.
The others ask ``ctx.host`` for all that is not a word or a reply.

A figure of INFO takes three places: a field of the facts here, its line in the section, and where it is gathered. Names
and units are Redis's wherever it has one, ``millstream_...`` else, and stay what they are: dashboards read them.
"""
