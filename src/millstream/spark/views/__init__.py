"""Views: the state of a server as tables of groups, consumers, pending entries and dead letters.

``columns`` has the columns of each view, ``planner`` divides it among tasks, ``rows`` reads it from the server, and
Spark calls ``source``. A new column needs a line in ``columns`` and a value in ``rows``.
"""
