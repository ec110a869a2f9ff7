"""Annotations from a Millstream primary: a transition that is checked, applied, recorded and relayed."""

from millstream.commands.context.context import Context
from millstream.engine.serialization.plain import MalformedError
from millstream.replication import annotations
from millstream.replication.annotations import AnnotationError


def run(ctx: Context, payload: bytes) -> int:
    """Apply an annotation as a part of the current record; return the number of following commands to skip."""
    covers, step = annotations.read(payload)
    space = ctx.host.keyspace
    annotations.check(space, step)
    op, db, key = step[:3]
    database = ctx.db = space.databases[db]
    before = database.keys.get(key)
    is_new = op == "cseen" and step[4] not in before.groups[step[3]].consumers  # type: ignore[union-attr]  # checked
    try:
        ctx.commit(step)
    except MalformedError as error:
        raise AnnotationError(f"an annotation restores a value that cannot be read: {error}") from None
    ctx.dirty += 1
    if op == "gnack":
        ctx.wake(key)
    elif op == "restore":
        ctx.signal(key)
        ctx.notify("g", "restore", key)
        ctx.overwritten(key, before)
    elif op == "xdrop":
        ctx.notify("t", "xtrim", key)
        ctx.touch(key)
    elif is_new:
        ctx.notify("t", "xgroup-createconsumer", key)
    return covers
