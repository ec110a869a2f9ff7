"""The limits of a server's living workers, and the rates that were set at run time. Anybody may have written both."""

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
    """The limits of a server."""

    limits: tuple[LimitStatus, ...] = ()  # In the order of their names
    found: int = 0  # Number of all; some may be left out


async def read_limits(line: Line, most: int | None = None) -> LimitsSeen:
    """The limits, in the order of their names; the first ones where a number is given."""
    (flat,) = await calls(line.near(RATES), [("HGETALL", RATES)])
    words = checked(flat, RATES)
    written = {text_of(name): rate for name, rate in zip(words[::2], words[1::2], strict=True)}
    found = limits_of(await protocol.workers(line), written)
    return LimitsSeen(found[:most], len(found))


async def named_limit(line: Line, name: str) -> LimitStatus:
    """One limit; an error where neither a worker nor the hash has it."""
    for one in (await read_limits(line)).limits:
        if one.name == name:
            return one
    raise TargetMissingError(
        f"there is no limit {name!r} of living workers; `millstream limit ls` lists those there are"
    )
