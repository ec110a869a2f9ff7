"""``millstream doctor``: problems of this machine, a data directory or a server, and what to do next.

``findings`` is the result of all of it. ``machine``, ``directory`` and ``server`` each look at one thing and yield
findings as they go, so that a failure does not hide earlier ones. Only an observed fact is a finding: a question
without an answer is a note that says so, never silence.
"""
