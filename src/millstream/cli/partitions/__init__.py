"""The partitions of a stream on the command line."""
