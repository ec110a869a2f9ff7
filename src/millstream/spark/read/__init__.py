"""Reading entries as DataFrames: planned at the driver, read by tasks.

Read ``stream_info`` (the driver's commands to a server), then ``planner`` (the beginning, end and parts of a batch).
``pages`` reads a range page by page, and ``reader`` is the work of a task. The definitions of a range, a position and a
loss are in ``model.offsets``, without I/O.
"""
