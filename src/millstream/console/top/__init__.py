"""The console in the terminal: the facts of ``console/model`` as views, live, read-only unless allowed otherwise.

``views`` make what is shown of each place, and lines of it: they need no terminal. ``app`` and the
``dialogs`` are Textual's.
"""
