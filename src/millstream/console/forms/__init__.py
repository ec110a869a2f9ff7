"""Changes from the words that a person filled in, on a page or in the terminal view.

``fields`` are the words that each needs, ``makers`` plan it of them, ``preparing`` shows, confirms and makes it.
"""
