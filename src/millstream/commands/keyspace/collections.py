"""Shared parts of the hash, sorted set, list and set commands: reporting changes and deleting empty keys."""

from dataclasses import dataclass

from millstream.commands.context.context import Context
from millstream.commands.keyspace.expiry import delete_key
from millstream.commands.table.args import read_integer
from millstream.commands.table.table import CommandGroup
from millstream.engine.keyspace import Transition
from millstream.errors import CommandError


@dataclass(frozen=True, slots=True)
class Family(CommandGroup):
    """The commands of one type. Their only key is the first argument unless a command's row differs."""

    keys: tuple[int, int, int] = (1, 1, 1)

    def changed(self, ctx: Context, key: bytes, event: str, dirty: int) -> None:
        """Report a change: invalidate WATCHes, publish the event, count the change."""
        ctx.touch(key)
        ctx.notify(self.letter, event, key)
        ctx.dirty += dirty

    def removed(self, ctx: Context, key: bytes, step: Transition, event: str, dirty: int) -> None:
        """Carry out a removal, report it, and delete the key if it is now empty."""
        ctx.commit(step)
        self.changed(ctx, key, event, dirty)
        drop_if_empty(ctx, key)

    def stored(self, ctx: Context, key: bytes, step: Transition | None, event: str, dirty: int = 1) -> None:
        """Replace the value at a key by the result of a command. Without a result, delete the key."""
        before = ctx.find(key)
        if step is None:
            if before is not None:
                delete_key(ctx, key)
            return
        ctx.commit(step)
        ctx.signal(key)
        ctx.overwritten(key, before)
        ctx.notify(self.letter, event, key)
        ctx.dirty += dirty


def key_count(argv: list[bytes], at: int, error: str = "ERR numkeys should be greater than 0") -> int:
    """Return the number of keys, which the argument at ``at`` gives."""
    count = read_integer(argv[at])
    if count is None or count < 1:
        raise CommandError(error)
    return count


def drop_if_empty(ctx: Context, key: bytes) -> None:
    """Delete the key of a collection that has become empty, as part of the same change.

    Redis has no empty collections. The event ``del`` follows the event of the removal, and does not count as another
    change.
    """
    value = ctx.db.keys[key]
    if not len(value):  # type: ignore[arg-type] # only collections come here
        ctx.commit(("unset", ctx.db.index, key))
        ctx.signal(key)
        ctx.notify("g", "del", key)
