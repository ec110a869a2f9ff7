"""Reading the limits of live workers and the rates set at run time. Any client may have written both."""

from dataclasses import dataclass

from millstream.client.limits.rate import RATES
from millstream.client.line import Line
from millstream.ops.asking import calls, checked
from millstream.ops.limits.status import LimitStatus, limits_of
from millstream.ops.plan import TargetMissingError
from millstream.ops.words import text_of
from millstream.worker.registry import protocol


@dataclass(frozen=True, slots=True)
class LimitsSeen:
    """The limits on a server."""

    limits: tuple[LimitStatus, ...] = ()  # Limits sorted by name
    found: int = 0  # Number of all limits; some of them may be omitted


async def read_limits(line: Line, most: int | None = None) -> LimitsSeen:
    """Return the limits sorted by name, at most ``most``."""
    (flat,) = await calls(line.near(RATES), [("HGETALL", RATES)])
    words = checked(flat, RATES)
    written = {text_of(name): rate for name, rate in zip(words[::2], words[1::2], strict=True)}
    found = limits_of(await protocol.workers(line), written)
    return LimitsSeen(found[:most], len(found))


async def named_limit(line: Line, name: str) -> LimitStatus:
    """Return a limit by name; raise an error if neither a worker nor the hash of rates has it."""
    for one in (await read_limits(line)).limits:
        if one.name == name:
            return one
    raise TargetMissingError(
        f"there is no limit {name!r} of living workers; `millstream limit ls` lists those there are"
    )
