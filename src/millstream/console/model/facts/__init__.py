"""Facts under names that never change: those of ``-o json`` and of the JSON of pages. PURE.

``streams`` has streams, groups and consumers, ``pending`` pending entries, ``payloads`` the content of an entry.
``overview`` has all streams together, ``findings`` the problems that need a person, ``servers`` those of a server.
``marks`` has the thresholds for marking a figure, and ``search`` finds names.
"""
