"""The means of a handler: the state it may read, the session, the parameters, and the ways to change anything.

Read ``session`` (a connection as plain data), ``context`` (lookup, commit, signal, notify), ``host`` (all that is not
a key), then ``config``. ``watches`` serves WATCH.
"""
