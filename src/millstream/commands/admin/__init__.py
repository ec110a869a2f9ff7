"""Commands for the operator of the server: ACL, CONFIG, COMMAND, the text of INFO, MEMORY.

``info`` is text made from facts, without access to a server; node/facts.py collects them. Only ``aclfile`` touches a
disk. The other modules get everything but arguments and replies from ``ctx.host``.

A figure of INFO takes three places: a field of the facts here, its line in the section, and the code that collects it.
Names and units are Redis's where they exist, ``millstream_...`` otherwise, and never change: dashboards read them.
"""
