"""Changes that are safe: previewed, guarded against what moved meanwhile, written down, and undone where that can be.

PURE: ``plan`` is what a change is, ``actions`` which there are, ``writing`` how one is typed, ``positions`` how a place
is; ``groups``, ``removals`` and ``pending`` decide what each of them does. ``gather`` asks a server for what they need,
``guard`` applies a plan, ``audit`` keeps who did what, ``rights`` knows what the connection may not do.
"""
