"""Repeated looks at a server, for pages and for the terminal: each question is asked once for all viewers.

``watch`` asks no more often than the server can bear, ``questions`` are those that several doors have, ``history``
keeps the readings of trends.
"""
