"""Values as plain data and back, in three forms for three readers. PURE.

* ``snapshot`` and ``snapshot_ops``: a keyspace as transitions, for the server's own log. Trusted, as fast as possible,
  blocks unchanged from memory.
* ``dump`` and ``plain``: one value in the form of DUMP and RESTORE. It comes from a client, so it is not trusted.
* ``rdb``: Redis's own form, of one value and of a whole file, read and written. All input goes through the checks of
  ``dump``.

To add an attribute that must survive, change ``snapshot`` first: a new transition, or a new argument with a default.
Then change ``dump`` (a new version of the payload), then the tests that compare the content before and after.
"""
