"""Changes of data without a command: keys and producers' messages expire, and streams lose old entries.

In the order to read them: ``cron`` (the time and the work of a round), then ``retention`` (the entries removed by
``stream-retention``). Each change is logged and sent to replicas like a client's command. ``vacuum`` cares for packs:
``renewing`` makes new extents of old ones, and ``scrubbing`` finds damage.
"""
