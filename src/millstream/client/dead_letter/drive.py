"""Carrying on an exchange over an asyncio line: the worker's way, and that of ``millstream dead``."""

from collections.abc import Callable
from typing import TypeVar

from millstream.client.dead_letter.transaction import Exchange
from millstream.client.line import Command, Line, Reply, Withheld

Result = TypeVar("Result")


async def drive(
    exchange: Exchange[Result],
    line: Line,
    *,
    only_if: Callable[[], bool] | None = None,
    sending: Callable[[list[Command]], None] | None = None,
) -> Result:
    """Send what the exchange asks for, and give it the replies, until it ends.

    Args:
        exchange: not begun yet.
        line: whose connection nobody else uses meanwhile: a WATCH is the connection's.
        only_if: asked right before a transaction is written; where it says False nothing is sent, and the exchange
            looks again.
        sending: called with each list of commands before it is sent.

    Raises:
        Disconnected: no reply came; whether the last commands ran is unknown.
    """
    replies: list[Reply] | None = None
    try:
        while True:
            commands = exchange.send(replies)
            if sending is not None:
                sending(commands)
            try:
                replies = await line.calls(commands, only_if=only_if if commands[0][0] == "MULTI" else None)
            except Withheld:
                replies = None
    except StopIteration as end:
        result: Result = end.value
        return result
