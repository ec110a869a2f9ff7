"""Views of a worker for people and monitoring. Everything is made on request, so that it costs the work nothing.

``health`` is the HTTP endpoint, ``prometheus`` the process's own metrics, ``group_metrics`` those of streams and
groups, and ``group_info`` what is asked of the server for them.
"""
