"""Streams: ids in order, entries, groups, pending entries, and every way they change. PURE.

Read ``stream`` (the counters and the lag), ``entries`` (nodes stored as reply bytes), ``group`` and ``pending`` (the
deliveries), then ``stream_ops``. ``ordered`` and ``listpack`` are their tools. ``idempotence`` is separate.

Costs, with n entries and p pending records:

* Adding is O(1).
* A range is O(log n), then a slice for each node; finding an entry is O(log n).
* Delivering, acknowledging and claiming one record is O(log p) in each of two orders.
* Trimming whole nodes is O(1) for each, apart from the list of the removed ids.
"""
