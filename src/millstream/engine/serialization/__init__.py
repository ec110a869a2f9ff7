"""Values as plain data and back, in three forms for three readers. PURE.

* ``snapshot`` and ``snapshot_ops``: a keyspace as transitions, for our own log. Trusted, as fast as possible, blocks as
  they lie in memory.
* ``dump``, ``dump_ops`` and ``plain``: one value as what DUMP answers and RESTORE takes. It comes from a client, so
  nothing in it is believed.
* ``rdb``: Redis's own form, of one value and of a whole file, read and written. What is read goes through the checks of
  ``dump``.

A value gets a new attribute that must survive: first ``snapshot`` (a new transition, or a new argument with a default),
then ``dump`` (a new version of the payload), then the tests that compare the content before and after.
"""
