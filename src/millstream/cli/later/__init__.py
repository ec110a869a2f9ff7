"""``millstream later`` and ``millstream schedule``: what they show."""
