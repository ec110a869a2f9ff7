"""Commands about connections: HELLO, CLIENT, MULTI, publish and subscribe.

They change the session, which is not data: nothing here is in the log, and all of it ends with the connection. They ask
``ctx.host`` for all that needs the node: killing, pausing, publishing.

Read ``connection`` (who one is), ``clients`` (who the others are), then what one needs of the rest. ``tracking`` stays
apart, being commands that exist only to say that there is no such thing.
"""
