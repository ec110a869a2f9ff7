"""Views: the state of a server as tables: groups, consumers, pending entries, dead letters.

``columns`` says what each view shows, ``planner`` which tasks read which part of it, ``rows`` asks the server for
them, and ``source`` is what Spark calls. Another column is a line in ``columns`` and a value in ``rows``.
"""
