"""Moving in and out: streams copied between any two servers, or to and from a file of plain commands, and compared.

``link`` is one connection to either end and ``abilities`` what the other end can hold; ``reading`` is what a stream is,
read page by page; ``wording`` makes commands of it; ``copying`` copies one stream under a temporary name and renames it
when ``comparing`` has read both sides again; ``commandfile`` is the file; ``moving`` does many streams and says what
became of each. A source is only ever read. docs/moving.md tells users what is carried and what is not.
"""
