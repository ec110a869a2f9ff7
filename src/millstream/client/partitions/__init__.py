"""Partitioned streams: the streams behind one name, the choice of one by a key, and the owner of each."""
