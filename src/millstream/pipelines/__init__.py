"""The pipelines of an app at work: one Spark driver for all of them, each query watched and started again by itself.

``driver`` is the process, ``runner`` keeps one query going, ``health`` answers the health endpoint.
"""
