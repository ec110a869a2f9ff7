"""Moving in and out: streams copied between any two servers, or to and from files, and compared.

Read in this order: ``connection`` is one end and ``capabilities`` what the other can hold; ``read_stream`` is what a
stream is, read page by page; ``commands`` makes commands of it; ``copy_stream`` copies one stream under a temporary
name and renames it when ``compare`` has read both sides again; ``command_file`` is a file of plain commands and
``rdb_file`` one of Redis's own; ``run`` does many streams and says what became of each. ``errors`` are by what they
mean for the other streams.

A source is only ever read, and nobody sees a copy that was not compared. docs/moving.md says what is carried.
"""
