"""The console in the browser: pages made by the server, readable without scripts, read-only by default.

``app`` joins everything; ``guard`` decides which requests get in; ``watch`` asks a Millstream or Redis server, once for
all viewers, and not at all without one; ``pages`` make the facts of each page and ``rendering`` makes HTML, JSON or
live events of them; ``charts`` draw.
"""
