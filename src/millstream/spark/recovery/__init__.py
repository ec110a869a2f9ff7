"""Recovery: what crashed workers left pending is claimed in slices, decided about by a function, and settled.

Read ``recover`` (the slices, the lock, what goes on after a kill), then ``settle`` (how a decision is carried out).
``user_function`` finds the function that the command line names.
"""
