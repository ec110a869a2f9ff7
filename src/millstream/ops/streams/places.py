"""Reading the place of entries, in memory or in packs, by stream; and a vacuum of packs, from its begin to its end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.client.line import Line
from millstream.errors import MillstreamError
from millstream.ops.asking import NotReadableError, calls, checked, refusal
from millstream.ops.server.status import parse_info
from millstream.ops.streams.reading import names
from millstream.ops.words import text_of

_PAGE = 500  # streams of one round trip
_COUNTS = (b"entries", b"cold-entries", b"hot-bytes", b"cold-bytes", b"packs")
_LOOK = 0.2  # seconds between two looks at a vacuum
_UNKNOWN = (
    "this server does not report the place of entries: it is Redis, Valkey or an older Millstream. `millstream stream "
    "show` shows the memory of a stream"
)
_NO_VACUUM = "this server has no packs to vacuum: it is Redis, Valkey or an older Millstream. Give another URL."
_SEVERAL = "a vacuum is for one server, and this is a cluster. Give the URL of one of its nodes."


@dataclass(frozen=True, slots=True)
class StreamTier:
    """The place of one stream's entries."""

    key: str
    entries: int  # Number of entries
    cold_entries: int  # Number of those in packs
    hot_bytes: int  # Bytes in memory
    cold_bytes: int  # Bytes in packs
    packs: int  # Number of packs that have some
    oldest_id: str | None  # First id; None without entries


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The result of a vacuum."""

    status: str  # ``ok``, or the reason in one word
    extents: int  # Number of extents that were written anew
    rewritten_bytes: int  # Bytes that these took before
    bytes_before: int  # Bytes of all packs before it
    bytes_after: int  # Bytes of all packs after it


async def read_places(line: Line, pattern: str | None = None) -> list[StreamTier]:
    """Read the place of the entries of all streams, or of those that match, page by page."""
    keys, found = await names(line, pattern), []
    for at in range(0, len(keys), _PAGE):
        page = keys[at : at + _PAGE]
        for key, reply in zip(page, await calls(line, [("TIER", "USAGE", key) for key in page]), strict=True):
            if "unknown command" in (refusal(reply) or ""):
                raise NotReadableError(_UNKNOWN)
            if isinstance(reply, list | dict):  # else it was removed or replaced meanwhile, or may not be read
                found.append(place_of(key, reply))
    return found


def place_of(key: str, reply: list[Any] | dict[Any, Any]) -> StreamTier:
    """Return the place of a stream's entries from a reply of TIER USAGE."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=False)
    facts = {name: value for name, value in pairs if isinstance(name, bytes)}
    entries, cold, hot_bytes, cold_bytes, packs = (
        value if isinstance(value := facts.get(name), int) else 0 for name in _COUNTS
    )
    oldest = facts.get(b"oldest-id")
    first = text_of(oldest) if isinstance(oldest, bytes) and oldest != b"0-0" else None
    return StreamTier(key, entries, cold, hot_bytes, cold_bytes, packs, first)


async def run_vacuum(line: Line, tell: Callable[[str, int, int], None]) -> Vacuumed:
    """Begin a vacuum, or join the one in progress, and wait for its end; ``tell`` gets step, done and whole bytes."""
    nodes = await line.nodes()
    if len(nodes) > 1:
        raise NotReadableError(_SEVERAL)
    before = await _figures(nodes[0])
    (reply,) = await calls(nodes[0], [("TIER", "VACUUM")])
    said = refusal(reply) or ""
    if "unknown" in said:
        raise NotReadableError(_NO_VACUUM)
    if said and "in progress" not in said:
        raise MillstreamError(said.removeprefix("ERR "))
    while True:
        now = await _figures(nodes[0])
        done = _number(now, "tier_vacuumed_bytes") - _number(before, "tier_vacuumed_bytes")
        if now.get("tier_vacuum_in_progress") == "1":
            tell("renew", done, done + _number(now, "tier_vacuum_left_bytes"))
        elif now.get("aof_rewrite_in_progress") != "1":
            break
        await asyncio.sleep(_LOOK)
    if (status := now.get("tier_last_vacuum_status")) is None:
        raise NotReadableError(_NO_VACUUM)
    return Vacuumed(
        status,
        _number(now, "tier_vacuumed_extents") - _number(before, "tier_vacuumed_extents"),
        done,
        _number(before, "tier_bytes"),
        _number(now, "tier_bytes"),
    )


async def _figures(node: Line) -> dict[str, str]:
    """Return the figures of packs and of the log."""
    replies = await calls(node, [("INFO", "tier"), ("INFO", "persistence")])
    texts = [checked(reply, "INFO") for reply in replies]
    return parse_info("\n".join(text_of(each) for each in texts if isinstance(each, bytes)))


def _number(figures: dict[str, str], name: str) -> int:
    value = figures.get(name, "0")
    return int(value) if value.isdigit() else 0
