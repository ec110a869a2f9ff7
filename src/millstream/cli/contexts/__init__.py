"""``millstream context`` and ``millstream config``: named servers, and the choice of a command's server."""
