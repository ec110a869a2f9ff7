"""Changes of data that no command asks for: keys expire, messages are forgotten, old entries of streams go.

In the order to read them: ``cron`` (when a round is due, and what it does), then ``retention`` (the entries that go by
``stream-retention``). Each change is logged and told to replicas as a client's command is.
"""
