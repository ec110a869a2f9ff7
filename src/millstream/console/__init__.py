"""A person's view of streams, groups and pending entries; reaches a server only through ``millstream.client``.

``model`` has the facts and the conclusions from them, and asks no server. ``reading`` asks a server for the facts. The
shell, the web page and the terminal view show the same facts, and compute none of their own.
"""
