"""Commands: parse the arguments, decide, commit transitions, return a value. Imports the engine, never node or server.

The rooms, each importing only those above it:
* ``table/``: the rows that describe commands, the parsing of arguments, and everything derived from the rows;
* ``users/``: users and their rights to commands and keys;
* ``context/``: everything that a handler gets;
* ``streams/``, ``keyspace/``, ``connection/``, ``admin/``: the handlers, a file for each family. Commands about a part
  of the node are in ``node/commands/``.

A command is a function under ``@GROUP.command(...)``, of a group in ``table/table.py``. It gets the context and the
whole argument list, after the number of arguments and the user's rights were checked. It works in this order:
1. Parse the arguments. Invalid ones raise :class:`~millstream.errors.CommandError` with Redis's text.
2. Look keys up by ``ctx.lookup`` and similar methods, which delete expired keys and count hits and misses.
3. Refuse what the state forbids. From the first commit on nothing may fail.
4. ``ctx.commit`` each transition; then ``signal`` or ``touch`` (for waiting clients and WATCH), ``notify`` (keyspace
   events), and add to ``ctx.dirty`` the number that Redis adds.
5. Return a reply value. The types of ``replies`` know where RESP2 and RESP3 differ; a handler reads ``session.resp``
   only where Redis itself does.

``table/documents.json`` describes each command, as COMMAND DOCS does. After a change: its ``since``, ``syntax`` and
``history`` first, then ``make docs``, then the generator of tests/conformance, which compares with a real server.
"""

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
    "keyspace.strings",
    "keyspace.numbers",
    "keyspace.hashes",
    "keyspace.zsets",
    "keyspace.zset_ranges",
    "keyspace.lists",
    "keyspace.sets",
    "keyspace.bits",
    "keyspace.geo",
    "keyspace.sorting",
    "connection.connection",
    "connection.clients",
    "connection.tracking",
    "admin.acl",
    "admin.server",
    "admin.tier",
    "admin.slowlog",
    "admin.introspection",
)


def load_all() -> None:
    """Import every family, which fills the command table, and the transitions they use.

    It imports by name when it is called, not at the top: otherwise rooms above would import those below them.
    """
    importlib.import_module("millstream.engine.transitions")
    for family in FAMILIES:
        importlib.import_module(f"millstream.commands.{family}")
