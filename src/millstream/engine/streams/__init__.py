"""Streams: ids in order, entries, groups, pending entries, and every way they change. PURE."""
