"""Streams: ids in order, entries, groups, pending entries, and every way they change. PURE.

Read ``stream`` (the counters and the lag), ``entries`` (nodes that are replies already), ``group`` and ``pending`` (who
was given what), then ``stream_ops``. ``ordered`` and ``listpack`` are tools of these, ``idempotence`` is by itself.

What things cost, n being entries and p pending records: adding is O(1); a range is O(log n) and then a slice for each
node; finding an entry is O(log n); delivering, acknowledging and claiming one record is O(log p) in each of two orders;
trimming whole nodes is O(1) for each, apart from the list of what goes.
"""
