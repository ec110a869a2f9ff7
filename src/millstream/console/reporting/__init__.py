"""``millstream report``: the questions of the pages to a server, asked once, redacted, and written to one file.

``gather`` asks by the functions that the pages read with, over a line that keeps every reply (``recording``);
``redact`` takes out private data; ``client/recorded`` reads the file.
"""
