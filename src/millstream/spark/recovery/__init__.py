"""Recovery: the pending entries of crashed workers, settled by a rule or by a user's function over a DataFrame.

Read ``recover`` first: entries are claimed in slices, decided about and settled. The entries that the recovery's
consumer holds are the present slice, so a killed recovery continues by itself. ``lock`` excludes a second one of the
same name. ``user_function`` finds the function that a command line names, and calls it; ``settle`` carries decisions
out.
"""
