"""The console in the browser: pages made by the server, readable without scripts, read-only unless told otherwise.

``app`` joins everything; ``guard`` decides which requests get in; ``watch`` asks a Millstream or Redis server, once for
all who look, and not at all while nobody does; ``pages`` make the facts of each page and ``rendering`` makes HTML, JSON
or live events of them; ``charts`` draw.
"""
