"""Reading entries as DataFrames: planned at the driver, read by tasks.

Read ``stream_info`` (what the driver asks of a server), ``planner`` (where a batch begins and ends, and its parts),
``pages`` (a range page by page), ``reader`` (what a task does). The definitions of a range, a position and a loss are
in ``model.offsets``, without I/O.
"""
