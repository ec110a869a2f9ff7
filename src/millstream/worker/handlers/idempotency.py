"""Effects that happen once, though an entry may be delivered again: commands to the entry's own server, with a marker.

::

    @app.subscriber(StreamSub("orders", group="billing"))
    async def bill(order: dict, msg: Message) -> None:
        await once(msg, ("HINCRBY", "revenue", order["day"], order["amount"]), ("XADD", "bills", "*", "order", msg.id))

A script looks for the marker, sets it and runs the commands in one step. A crash of the worker or of the server
therefore leaves all of it or nothing. The marker is a key in the stream's slot that ends by itself::

    millstream:{orders}:once:billing:1763721600000-0    string: "done", or how many commands ran before one was refused

It goes by the id the entry had first. An entry that was dead and is put back has its effect once, and groups that
handled it before do not repeat theirs.
"""

import asyncio
from collections.abc import Sequence

from millstream import times
from millstream.client.line import Command
from millstream.client.slots import beside
from millstream.errors import UsageError
from millstream.paths import packaged
from millstream.worker.handlers.message import EntryLostError, Message

#: Seconds a marker is kept: a week, as long as the record of failures. An entry delivered again after that has its
#: effect again.
KEEP_SECONDS = 7 * 24 * 3600

#: KEYS: the marker; for a partition, the key of its owner. ARGV: the owner's text, or nothing; seconds that the marker
#: lives, then each command as the number of its words and the words. Returns 1 when commands ran, 0 when all had run
#: before, -1 where another owns the partition, or the error of the one that was refused. The marker comes first: where
#: it cannot be written, nothing has run.
SCRIPT = packaged("millstream.worker.handlers", "once.lua")


def marker(msg: Message) -> str:
    """Key of the marker for one entry and one group."""
    return beside(msg.stream, "once", f"{msg.group}:{msg.origin}")


async def once(msg: Message, *commands: Command, ttl: float | str = KEEP_SECONDS) -> bool:
    """Run commands on the entry's server, once for the entry and the group, in any number of deliveries.

    A command that the server refuses ends the run there; what ran before it is on record, and the next call goes on
    with the refused one. On a cluster the commands' keys must be in the stream's slot.

    Args:
        msg: the delivery.
        commands: each a sequence of words, as on the wire; the same ones for every delivery of the entry.
        ttl: whole seconds, or ``"7d"``, for which this is remembered; longer than an entry may wait for its next
            delivery.

    Returns:
        True when they ran now, False when an earlier delivery had run them.

    Raises:
        UsageError: no commands, or no time to remember them.
        ResponseError: the server refused a command, or scripts altogether.
        Disconnected: no answer came. The commands ran or not; fail the delivery, and the next one finds out.
        EntryLostError: the entry's partition has another owner by now; nothing ran.
    """
    words = _words(commands, ttl)
    member = msg._outcomes.member  # noqa: SLF001 - the message's own line to its server
    lease = member.lease
    keys = (1, marker(msg), "") if lease is None else (2, marker(msg), lease.key, lease.text)
    ran = await member.line.call("EVAL", SCRIPT, *keys, *words)
    if ran == -1:
        raise EntryLostError(f"{msg.stream} {msg.id}: another process owns the partition by now")
    return bool(ran)


def once_sync(msg: Message, *commands: Command, ttl: float | str = KEEP_SECONDS) -> bool:
    """:func:`once` for synchronous handlers: it returns when the server has answered.

    Args:
        msg: the delivery.
        commands: as for :func:`once`.
        ttl: likewise.
    """
    loop = msg._outcomes.loop  # noqa: SLF001 - where the line lives
    return asyncio.run_coroutine_threadsafe(once(msg, *commands, ttl=ttl), loop).result()


def _words(commands: Sequence[Command], ttl: float | str) -> list[bytes | str | int | float]:
    if not commands or not all(isinstance(command, tuple | list) and command for command in commands):
        raise UsageError(
            'once(msg, ("HINCRBY", "revenue", day, 5)): give at least one command, each a tuple of its words'
        )
    seconds = int(times.configured("once(ttl=", ttl, "s"))
    if seconds < 1:
        raise UsageError(f"once(ttl={ttl!r}): it must be 1 second or more")
    words: list[bytes | str | int | float] = [seconds]
    for command in commands:
        words += (len(command), *command)
    return words
