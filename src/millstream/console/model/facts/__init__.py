"""What is known as facts under names that never change: what ``-o json`` and the JSON of pages have. PURE.

``streams`` has streams, groups and consumers, ``pending`` pending entries, ``payloads`` what is in an entry.
``overview`` has all streams together, ``findings`` what needs a person, ``servers`` what of that is about a server,
``marks`` from when on a figure is marked, and ``search`` finds names.
"""
