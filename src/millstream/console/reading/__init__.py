"""Asking a server for the facts of ``console/model``, in few round trips, in pages, with every refusal kept.

``streams`` reads streams with their groups, ``groups`` one group's consumers, ``pending`` pending entries by pages;
``fleet`` workers, Spark queries and dead letters, ``server`` the server itself.
"""
