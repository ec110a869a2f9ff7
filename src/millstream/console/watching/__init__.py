"""Looking at a server again and again, for pages and for the terminal: each question asked once for all who look.

``watch`` asks no more often than the server can bear, ``questions`` are those that several doors have, ``history`` is
what trends are made of.
"""
