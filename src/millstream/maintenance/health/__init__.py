"""``millstream doctor``: what is wrong with this machine, a data directory or a server, and what to do next.

``findings`` is what all of it comes to; ``machine``, ``directory`` and ``server`` each look at one thing and yield as
they go, so that what was found before a failure is shown. Only what was seen is a finding: what could not be asked is a
note that says so, never silence.
"""
