"""Visits of consumers: a group notes each attempt to read or claim, also one that finds nothing."""

from millstream.commands.context.context import Context
from millstream.engine.streams.group import Group


def attend(ctx: Context, key: bytes, group_name: bytes, group: Group, consumer: bytes) -> None:
    """Record that a consumer tries to read or claim; it exists from now on."""
    if consumer not in group.consumers:
        ctx.commit(("cseen", ctx.db.index, key, group_name, consumer, ctx.now.wall))
        ctx.notify("t", "xgroup-createconsumer", key)
        ctx.dirty += 1


def note_seen(ctx: Context, key: bytes, group_name: bytes, group: Group, consumer: bytes) -> None:
    """Record the time of a consumer's attempt, unless a delivery has recorded it.

    This transition is soft: no reply waits for the disk because of it; otherwise each poll of an empty stream would
    cost an fsync. A crash may undo a seen time, and nothing else.
    """
    if group.consumers[consumer].seen != ctx.now.wall:
        ctx.commit(("cseen", ctx.db.index, key, group_name, consumer, ctx.now.wall), soft=True)
