"""Views of a worker for people and monitoring. Everything is computed on request, so that runs have no overhead.

``health`` is the HTTP endpoint. ``prometheus`` has the process's own metrics, ``group_metrics`` those of streams and
groups, and ``group_info`` reads the facts for them from the server.
"""
