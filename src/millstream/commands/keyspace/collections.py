"""What the commands of hashes, sorted sets, lists and sets share: how a change is told, and how an empty key goes."""

from collections.abc import Callable
from dataclasses import dataclass

from millstream.commands.context.context import Context
from millstream.commands.table.spec import Handler
from millstream.commands.table.table import command
from millstream.engine.keyspace import Transition


@dataclass(frozen=True, slots=True)
class Family:
    """One type's commands: how they are registered, and the letter of their events.

    Attributes:
        group: COMMAND DOCS group.
        letter: class of its keyspace events.
    """

    group: str
    letter: str

    def command(
        self,
        name: str,
        arity: int,
        flags: str,
        since: str,
        syntax: str,
        summary: str,
        *,
        limited: str = "",
    ) -> Callable[[Handler], Handler]:
        """Register a command whose only key is its first argument.

        Args:
            name: as in the table.
            arity: number of words, negative for "at least".
            flags: separated by blanks.
            since: the version that brought it.
            syntax: in the table's notation.
            summary: one line.
            limited: what of Redis's command is not there.

        Returns:
            A decorator for the handler.
        """
        return command(
            name,
            arity,
            flags=flags,
            keys=(1, 1, 1),
            since=since,
            group=self.group,
            syntax=syntax,
            summary=summary,
            limited=limited,
        )

    def changed(self, ctx: Context, key: bytes, event: str, dirty: int) -> None:
        """Tell of a change: WATCHes, the event, the counter.

        Args:
            ctx: the command's context.
            key: the key.
            event: its keyspace event.
            dirty: how many elements changed, which is how Redis counts it.
        """
        ctx.touch(key)
        ctx.notify(self.letter, event, key)
        ctx.dirty += dirty

    def removed(self, ctx: Context, key: bytes, step: Transition, event: str, dirty: int) -> None:
        """Carry out a removal, tell of it, and delete the key if nothing is left.

        Args:
            ctx: the command's.
            key: the key.
            step: the transition that removes.
            event: its keyspace event.
            dirty: how many elements went.
        """
        ctx.commit(step)
        self.changed(ctx, key, event, dirty)
        drop_if_empty(ctx, key)


def drop_if_empty(ctx: Context, key: bytes) -> None:
    """Delete the key of a collection that has become empty, as part of the same change.

    Redis has no empty collections. The event ``del`` comes after that of the removal; it is no change of its own.
    """
    value = ctx.db.keys[key]
    if not len(value):  # type: ignore[arg-type] # only collections come here
        ctx.commit(("unset", ctx.db.index, key))
        ctx.signal(key)
        ctx.notify("g", "del", key)
