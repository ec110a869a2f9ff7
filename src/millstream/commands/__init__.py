"""Commands: parse the words, decide, commit transitions, answer a value. Imports the engine, never node or server."""

import importlib

FAMILIES = (
    "streams.write",
    "streams.read",
    "streams.pending",
    "streams.groups",
    "streams.inspect",
    "connection.transactions",
    "connection.pubsub",
    "keyspace.keys",
    "keyspace.dump",
    "keyspace.expiry",
    "admin.persistence",
    "admin.debug",
    "keyspace.strings",
    "keyspace.substrings",
    "keyspace.hashes",
    "keyspace.zsets",
    "keyspace.lists",
    "keyspace.sets",
    "admin.scripting",
    "connection.connection",
    "connection.clients",
    "connection.pausing",
    "connection.tracking",
    "connection.wait",
    "admin.acl",
    "admin.server",
    "admin.introspection",
)


def load_all() -> None:
    """Import every family, which fills the command table, and the transitions they use."""
    importlib.import_module("millstream.engine.transitions")
    for family in FAMILIES:
        importlib.import_module(f"millstream.commands.{family}")
