"""Decisions from values alone: the entries that a batch reads or has claimed, and the keys of the sink's rows.

PURE: no server, no Spark, no clock, so that each rule is tested by values. Read ``offsets`` first (ids, positions, the
batch of a stream), then ``claims`` (the same for group mode); ``keys`` is independent.
"""
