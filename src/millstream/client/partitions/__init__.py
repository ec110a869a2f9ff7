"""Partitioned streams: the streams that one name stands for, how a key chooses one of them, and who owns each."""
