"""Conclusions about single entries: the place of one in each group, and the missing ones. PURE."""
