"""Run an exchange over an asyncio line, for the worker and ``millstream dead``."""

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
    """Send the commands of an exchange, and pass it the replies, until it ends; return its result."""
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
