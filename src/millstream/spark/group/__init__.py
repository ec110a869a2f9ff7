"""Group mode: a query that shares a consumer group with others, workers among them.

Read ``planner`` first, whose docstring says in which order a batch is claimed, logged, read and acknowledged, and why a
kill between any two of these loses nothing. ``pending`` is what a consumer holds, as the server knows it; ``renewal``
keeps others from claiming it while the batch runs; ``reader`` is the tasks' side. ``source`` is what Spark calls, and
``model`` what these parts hand to each other.
"""
