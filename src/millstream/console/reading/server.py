"""How a server is: INFO, and the commands that took long."""

from dataclasses import replace

from millstream.client.line import Command, Line
from millstream.console.model.names import text_of
from millstream.console.model.replies import refusal
from millstream.console.model.server import ServerStatus, parse_info, server_status, slow_command
from millstream.console.reading.asking import calls

_SLOW = 50
"""Commands that took long, at most."""


async def server(line: Line) -> list[ServerStatus]:
    """Each server: one, or the nodes of a cluster that have slots. What one refuses to tell lacks, with its reason.

    Raises:
        Disconnected: no answer came.
    """
    return [await _one(node) for node in await line.nodes()]


async def _one(line: Line) -> ServerStatus:
    at_ms = line.wall_time()
    asked: list[Command] = [("INFO",), ("INFO", "commandstats"), ("SLOWLOG", "GET", _SLOW)]
    whole, costs, slow = await calls(line, asked)
    missing = {
        name: said
        for name, reply in (("info", whole), ("costs", costs), ("slow", slow))
        if (said := refusal(reply)) is not None
    }
    info = parse_info("\n".join(text_of(reply) for reply in (whole, costs) if isinstance(reply, bytes)))
    found = server_status(info, at_ms)
    rows = () if refusal(slow) is not None else tuple(map(slow_command, slow))
    return replace(found, slow=rows, missing=missing)
