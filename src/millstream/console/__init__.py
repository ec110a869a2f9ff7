"""What a person sees of streams, groups and pending entries; reaches a server only through ``millstream.client``.

``model`` has the facts and what follows from them, without asking anybody. ``reading`` asks a server for them. The
shell, the web page and the terminal view show the same facts, and compute none of their own.
"""
