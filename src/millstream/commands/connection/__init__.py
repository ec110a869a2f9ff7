"""Commands about connections: HELLO, CLIENT, MULTI, publish and subscribe.

They change the session, which is not data: none of it is in the log, and all of it ends with the connection. They use
``ctx.host`` for everything that needs the node: killing, pausing, publishing.

Read ``connection`` (the client's own connection), ``clients`` (other connections), then others as needed. ``tracking``
is separate: its commands only report that there is no tracking.
"""
