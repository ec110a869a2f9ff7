"""The oldest pending entry of a group that is not delayed: a delayed entry is neither late nor stuck."""

from dataclasses import dataclass

from redis.exceptions import ResponseError

from millstream.client.delays import due
from millstream.client.line import Line
from millstream.client.ranges import behind

_PAGE = 1000
_PAGES = 10


@dataclass(frozen=True, slots=True)
class Undelayed:
    """The oldest pending entry that is not delayed, and the number of delayed ones."""

    oldest: bytes | None  # Lowest id that is not delayed; None if the first ten thousand are all delayed
    waiting: int  # Number of delayed entries; above one page, the number of future due times


async def undelayed(line: Line, stream: str, group: str, *, patience: float) -> Undelayed | None:
    """Look through the pending entries of a group with due times; return None if the server refuses."""
    start: str | None = "-"
    waiting, oldest = 0, None
    for page in range(_PAGES):
        (rows,) = await line.calls((("XPENDING", stream, group, start or "-", "+", _PAGE),), timeout=patience)
        if isinstance(rows, ResponseError):
            return None
        if not rows:
            break
        ids = [row[0] for row in rows]
        time, scores = await line.calls(due.question(stream, group, ids), timeout=patience)
        left = due.remaining(ids, time, scores)
        if page == 0 and len(ids) < _PAGE:
            waiting = len(left)
        elif page == 0 and not isinstance(time, ResponseError):
            now = int(time[0]) * 1000 + int(time[1]) // 1000
            counted = ("ZCOUNT", due.key(stream, group), f"({now}", now + due.LONGEST_MS)
            (found,) = await line.calls((counted,), timeout=patience)
            waiting = 0 if isinstance(found, ResponseError) else found
        oldest = next((entry for entry in ids if entry not in left), None)
        if oldest is not None or len(ids) < _PAGE:
            break
        start = behind(ids[-1])
    return Undelayed(oldest, waiting)
