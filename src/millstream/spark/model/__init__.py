"""What is decided from values alone: what a batch reads or has claimed, and under which keys the sink keeps its rows.

PURE: no server, no Spark, no clock, so that each rule is tested by values. Read ``offsets`` first (ids, positions, what
a batch of a stream is), then ``claims`` (the same for group mode); ``keys`` stands alone.
"""
