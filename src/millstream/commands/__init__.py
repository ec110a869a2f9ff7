"""Commands: parse the words, decide, commit transitions, answer a value. Imports the engine, never node or server."""

import importlib

FAMILIES = (
    "streams_write",
    "streams_read",
    "streams_pending",
    "streams_groups",
    "streams_inspect",
    "transactions",
    "pubsub",
    "keys",
    "dump",
    "expiry",
    "persistence",
    "debug",
    "strings",
    "substrings",
    "hashes",
    "zsets",
    "lists",
    "sets",
    "scripting",
    "connection",
    "clients",
    "pausing",
    "tracking",
    "waiting",
    "acl",
    "server",
    "introspection",
)


def load_all() -> None:
    """Import every family, which fills the command table, and the transitions they use."""
    importlib.import_module("millstream.engine.transitions")
    for family in FAMILIES:
        importlib.import_module(f"millstream.commands.{family}")
