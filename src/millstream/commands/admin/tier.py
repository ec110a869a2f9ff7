"""TIER, a command of Millstream's own: the place of a stream's entries, in memory or in packs.

``TIER VACUUM`` is in :mod:`millstream.node.commands.vacuum`, since it needs the node.
"""

from millstream.commands.context.context import Context
from millstream.commands.table.table import SERVER
from millstream.engine.ids import text
from millstream.engine.streams.stream import Stream
from millstream.replies import Map, Reply

SERVER.container("tier")


@SERVER.command("tier|usage", 3, "readonly", keys=(2, 2, 1), acl="stream")
def tier_usage(ctx: Context, argv: list[bytes]) -> Reply:
    """The number of a stream's entries and their bytes, in memory and in packs; nil without the key. It reads no pack.

    The reply is the same with and without a tier; without one, no entry is cold.
    """
    stream = ctx.lookup_as(argv[2], Stream)
    if stream is None:
        return None
    entries = stream.entries
    return Map(
        [
            (b"entries", stream.length),
            (b"cold-entries", entries.cold_live),
            (b"hot-bytes", entries.footprint),
            (b"cold-bytes", entries.cold_bytes),
            (b"packs", len({pack for pack, _ in entries.pack_sizes()})),
            (b"oldest-id", text(stream.first_id)),
        ]
    )


SERVER.help("tier")
