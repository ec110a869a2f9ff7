"""Group mode: a query that shares a consumer group with others, workers among them.

Read ``planner`` first: its docstring explains the order in which a batch is claimed, logged, read and acknowledged. It
also explains why a kill between any two steps loses nothing. ``pending`` is what a consumer holds on the server;
``renewal`` keeps others from claiming it while the batch runs; ``reader`` is the tasks' side. Spark calls ``source``,
and ``model`` has the values that these parts exchange.
"""
