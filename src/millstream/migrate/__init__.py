"""Moving in and out: streams copied between any two servers, or to and from files, and compared.

Read in this order: ``connection`` is one end and ``capabilities`` the abilities of the other. ``read_stream`` reads the
parts of a stream page by page, and ``commands`` makes commands of them. ``copy_stream`` copies one stream under a
temporary name and renames it when ``compare`` has read both sides again. ``command_file`` is a file of plain commands
and ``rdb_file`` one of Redis's own. ``run`` does many streams and reports the outcome of each. ``errors`` are sorted by
their meaning for the other streams.

A source is only ever read, and a copy is not visible before it was compared. docs/moving.md lists what is carried.
"""
