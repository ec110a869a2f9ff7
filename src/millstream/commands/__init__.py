"""Commands: parse the words, decide, commit transitions, answer a value. Imports the engine, never node or server.

The rooms, each importing only those above it:
* ``table/``: what a command is (a row), how words are read, what is made from the rows;
* ``users/``: who may run which row on which keys;
* ``context/``: what a handler is given;
* ``streams/``, ``keyspace/``, ``connection/``, ``admin/``: the handlers, a file for each family; those that ask a part
  of the node are with it, in ``node/commands/``.

A command is a function under ``@GROUP.command(...)``, of a group in ``table/table.py``. It gets the context and the
whole line, the number of words being right already, and users' rights checked. It works in this order:
1. Read the words. Wrong parameters raise :class:`~millstream.errors.CommandError` with Redis's text.
2. Look keys up by ``ctx.lookup`` and its kin, which delete what is expired and count hits and misses.
3. Refuse what the state forbids. From the first commit on nothing may fail.
4. ``ctx.commit`` each transition; then ``signal`` or ``touch`` (who waits, who watches), ``notify`` (keyspace events),
   and add to ``ctx.dirty`` what Redis would.
5. Return a reply value. The types of ``replies`` know where RESP2 and RESP3 differ; a handler looks at
   ``session.resp`` only where Redis itself does.

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
    "admin.slowlog",
    "admin.introspection",
)


def load_all() -> None:
    """Import every family, which fills the command table, and the transitions they use.

    By name and when asked, not at the top: rooms above would else import those below them.
    """
    importlib.import_module("millstream.engine.transitions")
    for family in FAMILIES:
        importlib.import_module(f"millstream.commands.{family}")
