"""Changes that are safe: previewed, guarded against changes meanwhile, written down, and undone where that is possible.

PURE: ``plan`` is the plan of a change, ``actions`` the declarations, ``writing`` the typed form of a change,
``positions`` that of a place; ``groups``, ``removals`` and ``pending`` decide the effect of each. ``gather`` asks a
server for their facts, ``guard`` applies a plan, ``audit`` keeps the record of changes, ``rights`` knows the actions
that the connection may not take.
"""
