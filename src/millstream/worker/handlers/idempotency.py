"""Effects that happen once although an entry may be delivered again: commands to the entry's server, with a marker.

::

    @app.subscriber(StreamSub("orders", group="billing"))
    async def bill(order: dict, msg: Message) -> None:
        await once(msg, ("HINCRBY", "revenue", order["day"], order["amount"]), ("XADD", "bills", "*", "order", msg.id))

A script checks the marker, sets it and runs the commands in one step. So a crash of the worker or of the server leaves
all of it or nothing. The marker is a key in the stream's slot that expires::

    millstream:{orders}:once:billing:1763721600000-0    string: "done", or how many commands ran before one was refused

Its name has the entry's first id. So an entry that was dead and is put back has its effect once, and groups that
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

#: Seconds for which a marker is kept: a week, like the record of failures. A later delivery of the entry repeats its
#: effect.
KEEP_SECONDS = 7 * 24 * 3600

#: KEYS: the marker; for a partition, the key of its owner. ARGV: the owner's text, or nothing; the seconds for which
#: the marker is kept; then each command as its number of arguments and the arguments. Returns 1 if commands ran, 0 if
#: all had run before, -1 if another worker owns the partition, or the error of a refused command. The marker is set
#: first: if that fails, nothing has run.
SCRIPT = packaged("millstream.worker.handlers", "once.lua")


def marker(msg: Message) -> str:
    """Return the key of the marker for one entry and one group."""
    return beside(msg.stream, "once", f"{msg.group}:{msg.origin}")


async def once(msg: Message, *commands: Command, ttl: float | str = KEEP_SECONDS) -> bool:
    """Run commands on the entry's server, once for the entry and the group, in any number of deliveries.

    A command that the server refuses ends the run there. The earlier commands are on record, and the next call
    continues with the refused command. On a cluster the commands' keys must be in the stream's slot.

    Args:
        msg: the delivery.
        commands: commands, each a sequence of words as on the wire; the same ones for every delivery of the entry.
        ttl: time for which the run is remembered, in whole seconds or as ``"7d"``. It must be longer than an entry may
            wait for its next delivery.

    Returns:
        True if the commands ran now, False if an earlier delivery had run them.

    Raises:
        UsageError: no commands, or no time to remember them.
        ResponseError: the server refused a command, or scripts altogether.
        Disconnected: no reply came. The commands ran or not; fail the delivery, and the next one finds out.
        EntryLostError: the entry's partition has another owner now; nothing ran.
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
    """:func:`once` for synchronous handlers: it returns once the server has replied.

    Args:
        msg: the delivery.
        commands: as for :func:`once`.
        ttl: as for :func:`once`.
    """
    loop = msg._outcomes.loop  # noqa: SLF001 - event loop of that line
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
