"""Migration: copy streams between any two servers, or to and from files, and compare them.

Read in this order: ``connection`` is a connection to either server, and ``capabilities`` finds the target's features.
``read_stream`` reads the parts of a stream page by page, and ``commands`` turns them into commands. ``copy_stream``
copies one stream under a temporary name, and renames it after ``compare`` has read both sides again. ``command_file``
reads and writes files of plain commands, and ``rdb_file`` RDB files. ``run`` copies many streams and reports the
outcome of each. ``errors`` are sorted by their consequence for the other streams.

A source is only ever read, and a copy is not visible before it was compared. docs/moving.md lists the copied facts.
"""
