"""ACL categories, derived from a command's flags and group as Redis derives them.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/
"""

from millstream.commands.table.spec import Command

CATEGORIES = (
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
)
"""Every category, in the order in which Redis shows them; some have no commands here."""

# Category for each COMMAND DOCS group
_OF_GROUP = {
    "stream": "stream",
    "string": "string",
    "hash": "hash",
    "sorted-set": "sortedset",
    "list": "list",
    "set": "set",
    "bitmap": "bitmap",
    "geo": "geo",
    "scripting": "scripting",
    "generic": "keyspace",
    "connection": "connection",
    "transactions": "transaction",
}


def categories(row: Command) -> list[str]:
    """A command's categories with ``@``, in :data:`CATEGORIES`' order; a container by itself is only ``slow``."""
    if row.handler is None:
        return ["@slow"]
    flags = row.flags
    found = set(row.acl)
    if "write" in flags:
        found.add("write")
    if "readonly" in flags and row.group != "scripting":
        found.add("read")
    # WAIT uses no key, and SORT belongs to the types that it accepts
    if row.group in _OF_GROUP and not (row.group == "generic" and found & {"connection", "list"}):
        found.add(_OF_GROUP[row.group])
    if "admin" in flags:
        found |= {"admin", "dangerous"}
    found |= flags & {"pubsub", "blocking"}
    found.add("fast" if "fast" in flags else "slow")
    return [f"@{name}" for name in CATEGORIES if name in found]
