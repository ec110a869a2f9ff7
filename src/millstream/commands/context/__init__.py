"""Everything that a handler gets: the readable state, the session, the parameters, and the ways to change anything.

Read ``session`` (a connection as plain data), ``context`` (lookup, commit, signal, notify), ``host`` (everything but
keys), then ``config``. ``watches`` serves WATCH.
"""
