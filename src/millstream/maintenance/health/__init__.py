"""``millstream doctor``: find problems of this machine, a data directory or a server, and suggest the next steps.

``findings`` defines the result. ``machine``, ``directory`` and ``server`` each examine one subject and yield findings
as they go, so a failure does not hide earlier ones. Only an observed fact is a finding. A fact that cannot be observed
is a note with the reason, never silence.
"""
