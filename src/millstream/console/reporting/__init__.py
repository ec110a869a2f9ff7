"""``millstream report``: what the pages would ask a server, asked once, redacted, and written to one file.

``gather`` asks by the functions that the pages read with, over a line that keeps every reply (``recording``);
``redact`` takes out what is nobody else's business; ``client/recorded`` reads the file.
"""
