"""The data model and every change to it. PURE: no I/O, no clock, no random source, no other part of Millstream.

Read ``ids``, then ``keyspace`` (the transitions), then ``streams/``: ``stream``, ``entries``, ``group``, ``pending``,
and ``stream_ops``, which lists every change of a stream. ``serialization/`` turns values into plain ones for snapshots,
and into Redis's dump format. The other modules serve single commands: ``collections``, ``scanning``, ``channels``,
``waiting``.

The engine decides nothing that depends on the time or the configuration. Commands read its state and decide; then they
pass it transitions in which everything is resolved. That makes the log deterministic. So the engine must not raise for
a client's input: a logged transition must always apply.
"""
