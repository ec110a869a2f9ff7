"""The running pipelines of an app: one Spark driver for all of them, each query watched and restarted independently.

``driver`` is the process, ``runner`` keeps one query running, ``health`` serves the health endpoint.
"""
