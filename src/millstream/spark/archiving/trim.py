"""Trimming of archived entries that no group still needs: looked at and done in one script.

The script runs alone on the server, so no group can be made, moved back or given a pending entry between the look and
the cut. An entry is removed if it is archived, every group has read it, it is not pending in any group, and it is older
than the entries to keep. A group that has read nothing holds everything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.errors import UsageError
from millstream.failpoints import reach
from millstream.spark.archiving.manifest import ArchivePosition
from millstream.spark.connection.connection import ErrorReply
from millstream.spark.connection.router import Router, absent, pairs
from millstream.spark.model.offsets import ZERO, Id, parse_id
from millstream.texts import span_text

CHUNK = 100
"""Entries that one call of the script cuts when a number of entries is to be kept: it has to step over them."""

CHECKS = 3
"""Checks of the first entry without a cut after them; a stream whose head moves faster is trimmed the next time."""

SCRIPT = """#!lua
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return ms, seq
end
-- Halves of an id go past 2^53, where Lua's numbers are no longer exact: they are compared as digits.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function before(one, other)
  local ms, seq = parts(one)
  local ms2, seq2 = parts(other)
  if ms ~= ms2 then return less(ms, ms2) end
  return less(seq, seq2)
end
local function plus(digits)
  local head, last, nines = string.match(digits, '^(%d-)(%d?)(9*)$')
  if last == '' then return '1' .. nines:gsub('9', '0') end
  return head .. (tonumber(last) + 1) .. nines:gsub('9', '0')
end
local function after(id)
  local ms, seq = parts(id)
  if seq == '18446744073709551615' then
    if ms == seq then return id end  -- no id is greater: this one entry stays
    return plus(ms) .. '-0'
  end
  return ms .. '-' .. plus(seq)
end
local function named(flat)
  local found = {}
  for at = 1, #flat, 2 do found[flat[at]] = flat[at + 1] end
  return found
end

-- The first entry's id and fields in few bytes: another stream may begin with the same id.
local function oldest()
  local row = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  if not row then return '', '' end
  local words = {}
  for at, word in ipairs(row[2]) do words[at] = #word .. ':' .. word end
  return row[1], row[1] .. ' ' .. redis.sha1hex(table.concat(words))
end

local key, archived, archived_n, keep_ms, keep, cut = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('EXISTS', key) == 0 then return {'gone'} end
local stream = named(redis.call('XINFO', 'STREAM', key))
local length = stream['length']
if before(stream['last-generated-id'], archived) or stream['entries-added'] < tonumber(archived_n) then
  return {'back', stream['last-generated-id'], stream['entries-added']}
end

-- Who cuts says which entry it knows to be the first: under another one there may be another stream.
local first, mark = oldest()
if cut == '1' and mark ~= ARGV[7] then return {'look', first, length, mark} end

local limit, why = after(archived), {'archive'}
local function hold(id, ...)
  if before(id, limit) then limit, why = id, {...} end
end
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
  local group = named(flat)
  hold(after(group['last-delivered-id']), 'read', group['name'], group['last-delivered-id'])
  if group['pending'] > 0 then
    local oldest = redis.call('XPENDING', key, group['name'], '-', '+', 1)[1]
    if oldest then hold(oldest[1], 'pending', group['name'], oldest[1], oldest[2]) end
  end
end
if keep_ms ~= '' then
  local now = redis.call('TIME')
  local floor = math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - tonumber(keep_ms))
  hold(string.format('%.0f-0', floor), 'age')
end
local more = 0
if keep ~= '' then
  local spare = length - tonumber(keep)
  if spare <= 0 then
    hold('0-0', 'count')
  elseif cut == '1' and limit ~= '0-0' then  -- before 0-0 is nothing, and no range can be asked for
    local step = math.min(spare, tonumber(ARGV[6]))
    local rows = redis.call('XRANGE', key, '-', '(' .. limit, 'COUNT', step)
    if #rows == step then
      if step < spare then more = 1 else why = {'count'} end
      limit = after(rows[step][1])
    end
  end
end
local trimmed = 0
if cut == '1' then trimmed = redis.call('XTRIM', key, 'MINID', '=', limit) end
if trimmed > 0 then first, mark = oldest() end
return {'done', limit, trimmed, length - trimmed, more, why, mark}
"""


class ReplacedError(UsageError):
    """A stream is another one than was archived; its text says why.

    What to do: archive the stream into a new directory; the archive keeps what it has.
    """


@dataclass(frozen=True, slots=True)
class Keep:
    """The archived entries that stay in the stream."""

    ms: int | None = None  # Entries younger than this, by the server's clock; None for no such floor
    entries: int | None = None  # Number of the newest entries; None for no such floor
    given: str = ""  # The age as the user wrote it, such as ``"1h"``


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The result of a look at a stream."""

    stream: str  # Its key
    limit: Id | None  # Entries below this id may go, or have gone; None when the stream is not there
    count: int  # Entries removed
    left: int  # Entries that are still there
    held_by: str  # The obstacle to the next entry, in words; empty when everything archived is gone


class Trimmer:
    """Trims streams of one server."""

    def __init__(self, url: str, keep: Keep) -> None:
        self._router = Router(url)
        self._keep = keep
        self._firsts: dict[str, bytes] = {}  # of each stream the first entry that is known to be of the archived stream

    def close(self) -> None:
        """Give the connection back."""
        self._router.close()

    def trim(
        self,
        stream: str,
        archived: ArchivePosition,
        check: Callable[[str], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Trimmed:
        """Remove archived entries that no group needs."""
        total = checks = 0
        while True:
            reach("trimming")
            answer = self._ask(stream, archived, cut=True)
            if answer[0] == b"look":
                if checks == CHECKS:  # a moved head may be another stream's: no id proves that it is not
                    held = "its first entry changed during each check; the next trimming tries again"
                    return Trimmed(stream, ZERO, total, answer[2], held)
                check(answer[1].decode())
                checks += 1
                self._firsts[stream] = answer[3]
                continue
            reach("trimmed")
            if answer[0] == b"done":
                self._firsts[stream] = answer[6]
                checks = 0
            found = _read(stream, archived, answer, self._keep)
            total += found.count
            if answer[0] != b"done" or not answer[4]:
                return Trimmed(stream, found.limit, total, found.left, found.held_by)
            if stop():
                return Trimmed(stream, found.limit, total, found.left, "the job was to stop; the next one trims it")

    def look(self, stream: str, archived: ArchivePosition) -> Trimmed:
        """The result that :meth:`trim` would have, without trimming and without a number of entries to keep."""
        return _read(stream, archived, self._ask(stream, archived, cut=False), self._keep)

    def left(self, stream: str) -> int | None:
        """The number of entries in a stream; None if the user may not know."""
        (answer,) = self._router.ask([("XINFO", "STREAM", stream)])
        if isinstance(answer, ErrorReply):
            return 0 if absent(answer) else None
        return int(pairs(answer)[b"length"])

    def _ask(self, stream: str, archived: ArchivePosition, *, cut: bool) -> Any:
        floors = ["" if floor is None else floor for floor in (self._keep.ms, self._keep.entries)]
        place = (str(archived.id), archived.n)
        # Said again after a lost reply it cuts what may be cut then, which is right as well.
        (answer,) = self._router.ask(
            [("EVAL", SCRIPT, 1, stream, *place, *floors, "1" if cut else "0", CHUNK, self._firsts.get(stream, "?"))]
        )
        if isinstance(answer, ErrorReply):
            raise UsageError(
                f"stream {stream!r} was not trimmed, the server refused the script: {answer}. It needs EVAL and the "
                "commands XINFO, XPENDING, XRANGE, XTRIM and TIME; --no-trim archives without trimming"
            )
        return answer


def _read(stream: str, archived: ArchivePosition, answer: Any, keep: Keep) -> Trimmed:
    if answer[0] == b"gone":
        return Trimmed(stream, None, 0, 0, "" if archived.id == ZERO else "the stream is no longer there")
    if answer[0] == b"back":
        raise ReplacedError(
            f"stream {stream!r} went back: it is archived up to {archived.id} (entry {archived.n}), and the server "
            f"says its last id is {answer[1].decode()} (entry {answer[2]}). It was deleted and made anew, or restored "
            "from an older state; it is neither archived nor trimmed. Archive it into a new directory"
        )
    _, limit, count, left, _, why, _ = answer
    return Trimmed(stream, parse_id(limit.decode()), count, left, _held(why, keep) if left else "")


def _held(why: list[bytes], keep: Keep) -> str:
    kind, *more = [word.decode(errors="backslashreplace") for word in why]
    if kind == "read":
        has = "has read nothing" if more[1] == "0-0" else f"has read up to {more[1]}"
        return f"group {more[0]!r} {has}"
    if kind == "pending":
        who = f"consumer {more[2]!r}" if more[2] else "no consumer (given back)"
        return f"group {more[0]!r} has {more[1]} pending, held by {who}"
    if kind == "age":
        return f"kept for {keep.given or span_text(keep.ms or 0)}"
    if kind == "count":
        return f"the newest {keep.entries} entries are kept"
    return "the rest is not archived yet"
