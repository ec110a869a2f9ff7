"""What each view of ``millstream top`` asks for and shows, without a terminal; ``every`` has their names.

``view`` is what a view is made of, ``asked`` what several have in common, ``drawing`` makes lines of one.
"""
