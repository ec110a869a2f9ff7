"""``millstream context`` and ``millstream config``: servers under names, and which one a command goes to."""
