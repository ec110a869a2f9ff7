"""The shared parts of hashes, sorted sets, lists and sets: how a change is reported, and how an empty key goes."""

from dataclasses import dataclass

from millstream.commands.context.context import Context
from millstream.commands.keyspace.expiry import delete_key
from millstream.commands.table.args import read_integer
from millstream.commands.table.table import CommandGroup
from millstream.engine.keyspace import Transition
from millstream.errors import CommandError


@dataclass(frozen=True, slots=True)
class Family(CommandGroup):
    """One type's commands, whose only key is the first argument unless a row says otherwise."""

    keys: tuple[int, int, int] = (1, 1, 1)

    def changed(self, ctx: Context, key: bytes, event: str, dirty: int) -> None:
        """Tell of a change: WATCHes, the event, the counter."""
        ctx.touch(key)
        ctx.notify(self.letter, event, key)
        ctx.dirty += dirty

    def removed(self, ctx: Context, key: bytes, step: Transition, event: str, dirty: int) -> None:
        """Carry out a removal, tell of it, and delete the key if nothing is left."""
        ctx.commit(step)
        self.changed(ctx, key, event, dirty)
        drop_if_empty(ctx, key)

    def stored(self, ctx: Context, key: bytes, step: Transition | None, event: str, dirty: int = 1) -> None:
        """Put the result of a command in place of the value at a key; without one the key goes."""
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
    """The number of keys that follow, read from the word at ``at``."""
    count = read_integer(argv[at])
    if count is None or count < 1:
        raise CommandError(error)
    return count


def drop_if_empty(ctx: Context, key: bytes) -> None:
    """Delete the key of a collection that has become empty, as part of the same change.

    Redis has no empty collections. The event ``del`` comes after that of the removal; it is not a change of its own.
    """
    value = ctx.db.keys[key]
    if not len(value):  # type: ignore[arg-type] # only collections come here
        ctx.commit(("unset", ctx.db.index, key))
        ctx.signal(key)
        ctx.notify("g", "del", key)
