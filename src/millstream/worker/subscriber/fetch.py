"""Read new and stale entries in one pass, on servers with XREADGROUP CLAIM and on servers without it.

With CLAIM, one blocking command does both and wakes up when an entry becomes stale. The plain read sent right after it
fills the places that claims may not take. Without CLAIM, XAUTOCLAIM walks the pending list in steps, at jittered
intervals tied to ``min_idle``, and continues each step at the last cursor. Retries that this process delayed are
claimed by id when they are due. On both, XAUTOCLAIM also finds entries that are pending but gone from the stream, and
the server then drops them; CLAIM skips such entries.
"""

import asyncio
import contextlib
import heapq
import logging
from typing import Any

from redis.exceptions import ResponseError

from millstream import failpoints
from millstream.client.delays.due import first, remaining
from millstream.client.line import Command, Disconnected, Line, Reply
from millstream.client.ranges import order_of
from millstream.texts import plural
from millstream.worker.model.lifecycle import Event, State
from millstream.worker.model.retry import share
from millstream.worker.settlement import spare
from millstream.worker.settlement.consumer import Held, hold
from millstream.worker.settlement.read_fence import ReadFence
from millstream.worker.subscriber.key_ordering import HoldingOrder
from millstream.worker.subscriber.parts import Common, SubscriberPart

log = logging.getLogger("millstream.worker")

_SWEEP_LIMIT_MS = 2_000
#: Longest sweep interval for an owner: no other worker leaves entries in its stream, and it stores the due times of its
#: own.
_OWNED_SWEEP_MS = 10_000
#: Milliseconds between two checks of failed entries for which others wait, and the largest number of entries in one.
_BLOCKED_MS = 1_000
_BLOCKERS = 100
#: Number of delayed entries whose due times an owner reads at its start; sweeps find the others.
_DELAYED = 1_000
#: Milliseconds for which reads filled with new entries do not claim after a claim found nothing, because a read with
#: CLAIM costs a server several times as much.
_CLAIM_PAUSE_MS = 20
#: Milliseconds between two checks of the spare process for its entries.
_GIVEN_MS = 200
_FIRST_CURSOR = b"0-0"
_IN_PROGRESS = frozenset({State.BUFFERED, State.RUNNING, State.ACKING, State.DYING})


class GroupMissing(Exception):  # noqa: N818 - a state of the server
    """The group, or the stream with it, does not exist."""


class Fetcher(SubscriberPart):
    """Reads the entries of one subscriber."""

    def __init__(self, common: Common, line: Line, owned: ReadFence | None = None) -> None:
        super().__init__(common)
        self.line = line
        self._owned = owned  # None if other consumers also read the stream
        # All entries of an earlier owner, and all entries released here, come first
        self.taking_over = owned is not None
        self._broke_off = False  # A read of an owned stream failed, and may have delivered entries
        self.returns = 0  # Number of entries of an owned stream that were released
        self._last: bytes | None = None  # entries after this one are new
        self.holding: HoldingOrder | None = None  # Delays entries while a failed entry with their key is pending
        self._looked_at = 0  # monotonic milliseconds of the last check of failed entries for which others wait
        self._awaits = False  # the last read returned nothing, and no entry has arrived since
        self._cursor = _FIRST_CURSOR  # position in the sweep through the pending list
        self._sweep_at = 0  # monotonic milliseconds of its next step
        self._turn = False  # with one free place, claims and new entries alternate
        self._nothing_new = False  # the last read returned only claimed entries, so claims may use more places
        self._idle = False  # the last read returned nothing
        self._stale_again_at = 0  # monotonic milliseconds
        self._given_since = 0  # monotonic milliseconds since which the spare process has entries; 0 if it has none
        self._came: list[Held] = []  # entries of the current read
        self._again: list[Held] = []  # entries among them that were claimed or delivered before
        self._rows: dict[bytes, bytes | None] = {}  # rows of the record that were returned with the counts
        self._known: set[bytes] = set()  # entries of this read whose rows were requested
        #: Monotonic milliseconds until which the current read may block; 0 if none blocks
        self.blocked_until = 0
        self._asked_at = 0  # time of the request, from which leases count: a suspended process gets a reply late

    async def read(self, room: int) -> list[Held]:
        """Read at most ``room`` entries, waiting at most the polling interval."""
        self._came, self._again, self._rows = [], [], {}
        self._known.clear()
        self._delays.left.clear()
        try:
            if self._broke_off:
                await self._take_back()
            found = await self._find(room)
            if self._again:
                found = await self._look_up(found)
        except BaseException:
            # Also after a cancellation, since no lane would run the entries read so far
            self._let_go()
            self._broke_off = self._owned is not None
            raise
        return found

    async def _look_up(self, found: list[Held]) -> list[Held]:
        """Read the records of entries that were claimed or delivered before; return those that may run now."""
        # CLAIM returns entries without their records; for XCLAIM and XAUTOCLAIM they were requested with the counts
        unknown = [held.id for held in self._again if held.id not in self._known]
        if unknown:
            record, time, scores = await self.line.calls(self._questions(unknown))
            self._answered(unknown, record, time, scores)
        # Before the failure log: the claim of an entry that is not due must not count as a crash
        if self._delays.left:
            early = await self._delays.put_back(self._again, self.line)
            self._member.stats.claimed -= len(early)  # put back as if they had not been claimed
            for held in early:
                # After a longer delay, the next sweep finds it
                if self._delays.left[held.id] < self._member.min_idle:
                    self._acks.remind(held.id, self._delays.left[held.id])
            self._again = [held for held in self._again if held not in early]
            found = [held for held in found if held not in early]
        # An entry that a limit refused has a due time, but no delivery that counts
        await self._failures.look_up([held for held in self._again if held.deliveries > 1], self._rows, self.line)
        return [held for held in found if held.state is State.BUFFERED]

    def _questions(self, ids: list[bytes]) -> tuple[Command, ...]:
        """Return the commands that read the records and due times of claimed entries."""
        return (self._failures.question(ids), *self._delays.question(ids))

    def _answered(self, ids: list[bytes], record: Reply, time: Reply, scores: Reply) -> None:
        self._known.update(ids)
        if not isinstance(record, ResponseError):  # otherwise look_up repeats the command and handles the error
            self._rows.update(zip(ids, record, strict=True))
        self._delays.answered(ids, time, scores)

    async def hold(self) -> None:
        """Keep delayed entries out of reach of claims, in requests of their own."""
        if command := self._delays.hold():
            line = self._member.line  # the other connection may be blocked by a read
            (reply,) = await line.calls(command)
            await self._drop(await self._delays.held(reply, line))

    async def _calls(self, *commands: Command, within: float | None = None) -> list[Reply]:
        """Send commands that may claim in one request, after the command that hides delayed entries from them."""
        hold: tuple[Command, ...] = ()
        if self._delays.many:
            await self.hold()  # All pages before the claim, which may wait
        else:
            hold = self._delays.hold()
        # In one request, so that other workers can delay few entries in between
        if self._owned is None:
            replies = await self.line.calls((*hold, *commands), timeout=within)
        else:
            replies = await self._owned.calls(hold, commands, within)
        if hold:
            answer = replies.pop(0)
            with contextlib.suppress(Disconnected):  # the entries in the reply are owned nevertheless
                await self._drop(await self._delays.held(answer, self.line))
        return replies

    async def _drop(self, gone: list[bytes]) -> None:
        """Drop the records of pending entries that are gone from the stream, and log it."""
        if gone:
            self._member.stats.lost += len(gone)
            await self.line.calls(self._failures.forget(gone))
            log.warning(
                "%s: %s trimmed or deleted unread",
                self._member.stream,
                plural(len(gone), "pending entry was", "pending entries were"),
            )

    def _let_go(self) -> None:
        """Lose the entries of a read that broke off: they are not renewed, so they are claimed once idle."""
        for held in self._came:
            if held.state is State.BUFFERED:
                held.step(Event.LOSE)
                self._member.drop(held)

    async def _find(self, room: int) -> list[Held]:
        member = self._member
        if spare.is_here():
            return await self._claim_given(room)
        if room == 0:
            return await self._claim_blockers()
        if self.taking_over:
            await self._stored_returns()
            self._asked_at, returns = member.clock.now().mono, self.returns
            left = await self._sweep(self._asked_at, room)
            if returns != self.returns:
                self._cursor = _FIRST_CURSOR
            elif self._cursor == _FIRST_CURSOR:
                self.taking_over = False
                await self._expect_delayed()
            return left
        self._turn = not self._turn
        claimable = share(room, self._turn, alone=self._nothing_new) if self._subscription.read == "both" else room
        found: list[Held] = []
        now = self._asked_at = member.clock.now().mono
        # A due retry of this process ends the pause of claims
        if now < self._stale_again_at and not (self._acks.retries_due and self._acks.retries_due[0][0] <= now):
            claimable = 0
        if self._subscription.claims:
            # Order: first retries by id, since they are due to the millisecond; the sweep gets the remaining places
            if self.holding is not None and self.must_look:
                found = await self._claim_blockers()
            found += await self._claim_due(now, claimable)
            if len(found) < claimable and now >= self._sweep_at:
                if self._awaits and not await self._look():
                    self._sweep_at = now + self._pause(more=False)
                else:
                    found += await self._sweep(now, claimable - len(found))
        if self._subscription.read != "claimed" and room > len(found):
            # A server may be slow to end even the shortest BLOCK, so do not block if the next step is due
            due = self._subscription.claims and self._sweep_at <= now
            found += await self._read_new(room - len(found), claimable, block=not found and not due)
        return found

    def returned(self) -> None:
        """Note that an entry of an owned stream was released: it is read before new entries, to keep its key in order.

        No other worker reads the stream, so no other worker waits for this.
        """
        self.returns += 1
        self.taking_over, self._cursor = True, _FIRST_CURSOR

    async def _take_back(self) -> None:
        """Have entries that a failed read delivered read before new ones, to keep their keys in order."""
        assert self._owned is not None
        try:
            if await self._owned.take_back(self._member.held):
                self.taking_over, self._cursor = True, _FIRST_CURSOR
        except ResponseError as error:
            _checked(error)
        self._broke_off = False

    async def _stored_returns(self) -> None:
        """Wait until the server has stored the releases, since a sweep before that finds the entries still held."""
        failures = 0
        while any(held.state is State.RELEASING for held in self._member.held.values()):
            failures = 0 if await self._acks.flush() else failures + 1
            if failures:
                await asyncio.sleep(self._member.pause(failures))

    def sweep_soon(self) -> None:
        """Walk through the whole pending list at the next read."""
        self._cursor, self._sweep_at = _FIRST_CURSOR, 0

    def wait_ms(self) -> int:
        """Return the milliseconds until the next work other than a read."""
        if spare.is_here():
            return _GIVEN_MS
        now = self._member.clock.now().mono
        # Leases count from the request of a read, so a read must not block until they are stale
        soonest = now + min(self._subscription.polling_interval, max(self._member.min_idle // 2, 1))
        if self._subscription.claims:
            soonest = min(soonest, self._sweep_at)
            if self._acks.retries_due and not self._native:
                soonest = min(soonest, self._acks.retries_due[0][0])
        return max(soonest - now, 1)

    @property
    def blocks(self) -> bool:
        """True if a read waits for new entries by itself."""
        return self._subscription.read != "claimed" and not spare.is_here()

    @property
    def _native(self) -> bool:
        return self._member.capabilities.claim and self._subscription.read == "both" and self._owned is None

    # -- new entries ------------------------------------------------------------------------------------------------

    async def _read_new(self, room: int, claimable: int, *, block: bool) -> list[Held]:
        # If claims do not have their turn, do not block for new entries: the next read may do both
        wait = self.wait_ms() if block and (claimable or not self._native) else 0
        member = self._member
        if self._owned is not None:
            # A transaction cannot block, so a read without delivery blocks instead
            if wait and self._awaits and not await self._wait(wait):
                return []
            wait = 0
        commands: list[Command] = []
        # Two reads in one request: the second fills the places that claims must leave to new entries. After a read
        # without entries the second one is rarely needed, and an idle worker should cost the server little.
        if self._native and claimable:
            commands.append(self._command(min(claimable, room), wait, claim=True))
            if room > claimable and not self._idle:
                commands.append(self._command(room - claimable, 0, claim=False))
        else:
            commands.append(self._command(room, wait, claim=False))
        claimed = member.stats.claimed
        self._asked_at = member.clock.now().mono
        # `Intake` ends the wait early if a retry of this process is due before its end
        self.blocked_until = self._asked_at + wait if wait else 0
        try:
            # 10 s more than the wait: a loaded server replies late, a dead connection never does
            replies = await self._calls(*commands, within=wait / 1000 + 10)
        finally:
            self.blocked_until = 0
        failpoints.reach("after_read")
        found: list[Held] = []
        for reply in replies:
            found += self._take_rows(_checked(reply))
        self._idle = not found
        self._awaits = self._owned is not None and not found
        self._nothing_new = all(held.deliveries > 1 for held in found)
        # There was room left or something stale, so the next read also looks for stale entries
        if len(found) < room or member.stats.claimed > claimed:  # includes entries that were released uncharged
            self._stale_again_at = 0
        elif claimable and self._native:
            self._stale_again_at = self._asked_at + min(_CLAIM_PAUSE_MS, member.min_idle // 10)
        return found

    async def _wait(self, wait: int) -> bool:
        """Wait for an entry that was never delivered; return False if there is none."""
        member = self._member
        if self._last is None:
            await self._look()
        self.blocked_until = member.clock.now().mono + wait
        look = ("XREAD", "COUNT", 1, "BLOCK", wait, "STREAMS", member.stream, self._last or _FIRST_CURSOR)
        try:
            (reply,) = await self.line.calls((look,), timeout=wait / 1000 + 10)
        finally:
            self.blocked_until = 0
        if reply is None:
            return False
        self._last = None  # repeat if the read finds nothing, because another consumer has read the entry
        _checked(reply)
        return True

    async def _look(self) -> int:
        """Read the group's last delivered id; return the number of pending entries."""
        rows = _checked((await self.line.calls((("XINFO", "GROUPS", self._member.stream),)))[0])
        for row in rows:
            facts = dict(zip(row[::2], row[1::2], strict=True))
            if facts[b"name"] == self._member.group.encode(errors="surrogateescape"):
                self._last = facts[b"last-delivered-id"]
                return int(facts[b"pending"])
        raise GroupMissing(self._member.group)

    async def _expect_delayed(self) -> None:
        """Read the due times of entries that an earlier owner delayed."""
        member = self._member
        if member.no_ack:
            return
        time, rows = await self.line.calls(first(member.stream, member.group, _DELAYED))
        if isinstance(rows, list):
            left = remaining(rows[::2], time, rows[1::2])
            for entry in rows[::2]:
                self._acks.remind(entry, left.get(entry, 0))

    def _command(self, count: int, wait: int, *, claim: bool) -> Command:
        member = self._member
        command: list[bytes | str | int] = [
            "XREADGROUP",
            "GROUP",
            member.group,
            member.consumer,
            "COUNT",
            max(count, 1),
        ]
        if wait:
            command += ("BLOCK", wait)
        if claim:
            command += ("CLAIM", member.min_idle)
        if member.no_ack:
            command.append("NOACK")
        return (*command, "STREAMS", member.stream, ">")

    def _take_rows(self, reply: Reply) -> list[Held]:
        if not reply:
            return []
        found: list[Held] = []
        ours, came, asked_at = self._member.held, self._came, self._asked_at
        for row in reply[0][1]:
            # With CLAIM a row has two more columns: idle milliseconds, and deliveries before this one
            before = row[3] if len(row) > 3 else 0
            claimed = len(row) > 3 and (row[2] > 0 or before > 0)
            if not claimed and row[0] not in ours:  # a shortcut for nearly all entries
                self._member.stats.read += 1
                self._last = row[0]
                held = ours[row[0]] = hold(row[0], row[1], 1, asked_at)
                came.append(held)
                found.append(held)
                continue
            again = self._hold(row[0], row[1], before + 1, claimed=claimed)
            if again is not None:
                found.append(again)
            if claimed:
                failpoints.reach("after_claim")
        return found

    # -- stale entries ----------------------------------------------------------------------------------------------

    async def _claim_due(self, now: int, room: int) -> list[Held]:
        """Claim, by id, retries that this process delayed and that are due."""
        due = self._acks.retries_due
        if self._native:
            while due and due[0][0] <= now:  # the server delivers these; later ones end a pause when they are due
                heapq.heappop(due)
            return []
        ids: list[bytes] = []
        # Later ones stay in the heap, and so do those for which there is no room
        while due and due[0][0] <= now and len(ids) < room:
            ids.append(heapq.heappop(due)[1])
        if not ids:
            return []
        member = self._member
        entries = _checked(
            await self._ask("XCLAIM", member.stream, member.group, member.consumer, member.min_idle, *ids)
        )
        return await self._claimed(entries, ordered=False)

    @property
    def look_in(self) -> float | None:
        """Seconds until the next look at failed entries for which others wait; None without any."""
        if self.holding is None or not self.holding.waiting:
            return None
        return max(self._looked_at + _BLOCKED_MS - self._member.clock.now().mono, 0) / 1000

    @property
    def must_look(self) -> bool:
        """True if it is time to look at failed entries for which others wait."""
        if self.holding is None or not self.holding.waiting:
            return False
        now, due = self._member.clock.now().mono, self._acks.retries_due
        return now - self._looked_at >= _BLOCKED_MS or bool(due and due[0][0] <= now)

    async def _claim_blockers(self) -> list[Held]:
        """Claim due retries and entries for which others of their key wait; forget those that are gone."""
        assert self.holding is not None
        member, due = self._member, self._acks.retries_due
        now = self._looked_at = self._asked_at = member.clock.now().mono
        ids: list[bytes] = []
        while due and due[0][0] <= now and len(ids) < _BLOCKERS:
            ids.append(heapq.heappop(due)[1])
        ids += [one for one in self.holding.blockers() if one not in member.held and one not in ids][:_BLOCKERS]
        if not ids:
            return []
        rows = await self.line.calls([("XPENDING", member.stream, member.group, one, one, 1) for one in ids])
        # Acknowledged or deleted by another client
        self.holding.forget({one for one, row in zip(ids, rows, strict=True) if row == []})
        claim = await self._ask("XCLAIM", member.stream, member.group, member.consumer, member.min_idle, *ids)
        return await self._claimed(_checked(claim), ordered=False)

    async def _claim_given(self, room: int) -> list[Held]:
        """Claim the entries that workers passed to this process, the spare."""
        member, now = self._member, self._member.clock.now().mono
        self._given_since = self._given_since or now
        self._failures.each_alone = now - self._given_since < spare.EACH_ALONE_MS
        if self._failures.each_alone:
            room = 1  # they run one by one, for a limited time
        name, most = member.consumer, room + len(member.held)
        rows = _checked(await self._ask("XPENDING", member.stream, member.group, "-", "+", most, name))
        ids = [row[0] for row in rows if row[0] not in member.held][:room]
        if not rows:
            self._given_since = 0
        if not ids:
            return []
        entries = _checked(await self._ask("XCLAIM", member.stream, member.group, name, 0, *ids))
        return await self._claimed(entries, ordered=False)

    async def _sweep(self, now: int, room: int) -> list[Held]:
        """Run one step through the pending list."""
        member = self._member
        reply = _checked(
            await self._ask(
                "XAUTOCLAIM", member.stream, member.group, member.consumer, member.min_idle, self._cursor, "COUNT", room
            )
        )
        start, self._cursor = self._cursor, reply[0]
        # Redis 7 also returns the ids that it dropped; 6.2 does not
        gone = reply[2] if len(reply) > 2 else await self._drop_gone(start, reply[1])
        await self._drop(gone)
        found = await self._claimed(reply[1], ordered=True)
        self._sweep_at = now + self._pause(more=bool(found or gone))
        return found

    async def _drop_gone(self, start: bytes, rows: list[Any]) -> list[bytes]:
        """On Redis 6.2, which claims entries that are gone from the stream and replies nil for them, acknowledge these.

        Return their ids.
        """
        if None not in rows:
            return []
        member = self._member
        # At most the entries just claimed and the held ones, which keep their positions in the list
        end, most = b"+" if self._cursor == _FIRST_CURSOR else self._cursor, len(rows) + len(member.held)
        ours = await self._ask("XPENDING", member.stream, member.group, start, end, most, member.consumer)
        ids = [row[0] for row in _checked(ours) if row[0] not in member.held]
        found = await self.line.calls([("XRANGE", member.stream, entry, entry) for entry in ids])
        gone = [entry for entry, reply in zip(ids, found, strict=True) if reply == []]
        if gone:
            _checked(await self._ask("XACK", member.stream, member.group, *gone))
        return gone

    def _pause(self, *, more: bool) -> int:
        """Return the milliseconds until the next step: 0 while there is work, few until all entries were seen."""
        if more:
            return 0
        interval = min(self._member.min_idle // 2, _SWEEP_LIMIT_MS if self._owned is None else _OWNED_SWEEP_MS)
        if self._cursor != _FIRST_CURSOR:
            interval //= 10 if self._native else 20  # each step costs three commands with CLAIM
        # Never longer than a poll of two seconds: a sweep due shortly after it would need a short read of its own
        return max(round(interval * (0.9 + 0.1 * self._member.chance.random())), 5)

    async def _claimed(self, entries: list[Any], *, ordered: bool) -> list[Held]:
        """Hold claimed entries, after reading their delivery counts, which XCLAIM and XAUTOCLAIM do not return."""
        rows = [entry for entry in entries if entry is not None and entry[1] is not None]
        if not rows:
            return []
        failpoints.reach("after_claim")
        member = self._member
        ids = [row[0] for row in rows]
        # XPENDING below needs the range from the first id to the last
        if not ordered:
            ids.sort(key=order_of)
        first, last = ids[0], ids[-1]
        most = len(ids) + len(member.held)
        look = ("XPENDING", member.stream, member.group, first, last, most, member.consumer)
        counts, *answers = await self.line.calls((look, *self._questions(ids)))
        deliveries = {row[0]: row[3] for row in _checked(counts)}
        # Other entries of this consumer may be in between, from an earlier process or a broken read
        crowded_out = [entry for entry in ids if entry not in deliveries]
        if crowded_out:
            replies = await self.line.calls(
                [("XPENDING", member.stream, member.group, entry, entry, 1, member.consumer) for entry in crowded_out]
            )
            deliveries |= {row[0]: row[3] for reply in replies for row in _checked(reply)}
        found = []
        for entry, fields in rows:
            if entry in deliveries:
                # Without a count it was acknowledged or claimed between the two requests, so it is lost
                held = self._hold(entry, fields, deliveries[entry], claimed=True)
                if held is not None:
                    found.append(held)
        self._answered(ids, *answers)
        return found

    async def _ask(self, *command: bytes | str | int) -> Reply:
        return (await self._calls(command))[0]

    def _hold(self, entry: bytes, fields: list[bytes], deliveries: int, *, claimed: bool) -> Held | None:
        """Hold one delivered entry; None if this process already holds it and its run goes on."""
        member = self._member
        if claimed:
            member.stats.claimed += 1
        else:
            member.stats.read += 1
        # Delivered again while it is held: the old object must remain the owner of the run
        known = member.held.get(entry)
        if known is not None and known.state in _IN_PROGRESS:
            # The lease expired and this process claimed the entry itself: the run continues with the new count
            known.deliveries = deliveries
            known.leased = self._asked_at
            return None
        held = hold(entry, fields, deliveries, self._asked_at)
        member.held[entry] = held
        self._came.append(held)
        if claimed or deliveries > 1:
            self._again.append(held)
        return held


def _checked(reply: Reply) -> Reply:
    if isinstance(reply, ResponseError):
        text = str(reply)
        if text.startswith("NOGROUP") or "no longer exists" in text:
            raise GroupMissing(text)
        raise reply
    return reply
