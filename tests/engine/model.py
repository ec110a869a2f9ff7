"""A simple model of streams with lists, dictionaries and loops: the oracle of the state machine.

It shares no code with the engine and is slow on purpose. An id is a pair ``(ms, seq)``. A group's pending records are
one list in the order in which CLAIM would take them, and everything else is found by looking through it. Replies are in
the form of :mod:`support.resp`, with maps as lists of ``[key, value]``.
"""

from collections.abc import Iterator
from copy import deepcopy

from engine.model_values import MOST, TOP, ZERO, Budget, Group, Id, Read, Record, Refused, Stream, Trim, following, text


class Model:
    """One database of streams.

    Attributes:
        now: wall milliseconds.
        node_entries: stream-node-max-entries.
        node_bytes: stream-node-max-bytes, 0 for no bound.
        streams: by key.
        deaths: expiry times, by key.
    """

    def __init__(self, node_entries: int, node_bytes: int) -> None:
        self.now = 0
        self.node_entries = node_entries
        self.node_bytes = node_bytes
        self.streams: dict[bytes, Stream] = {}
        self.deaths: dict[bytes, int] = {}

    # ------------------------------------------------------------------ keys

    def purge(self) -> None:
        for key, at in list(self.deaths.items()):
            if self.now > at:
                self.delete(key)

    def delete(self, key: bytes) -> int:
        self.deaths.pop(key, None)
        return int(self.streams.pop(key, None) is not None)

    def rename(self, key: bytes, new: bytes) -> None:
        if key not in self.streams:
            raise Refused("ERR no such key")
        if key != new:
            stream, at = self.streams[key], self.deaths.get(key)
            self.delete(key)
            self.delete(new)
            self.place(new, stream, at)

    def copy(self, key: bytes, new: bytes) -> int:
        if key not in self.streams:
            return 0
        self.delete(new)
        self.place(new, deepcopy(self.streams[key]), self.deaths.get(key))
        return 1

    def restore(self, key: bytes, new: bytes) -> None:
        """Restore a DUMP of one key under another; its expiry is dropped."""
        self.copy(key, new)
        self.deaths.pop(new, None)
        self.streams[new].rebuild_nodes()

    def place(self, key: bytes, stream: Stream, at: int | None) -> None:
        self.streams[key] = stream
        if at is not None:
            self.deaths[key] = at

    def expire(self, key: bytes, ms: int) -> int:
        if key not in self.streams:
            return 0
        self.deaths[key] = self.now + ms
        return 1

    def create(self, key: bytes) -> Stream:
        return self.streams.setdefault(key, Stream())

    def forget_messages(self) -> None:
        for stream in self.streams.values():
            bound = self.now - stream.duration * 1000
            for producer, messages in list(stream.messages.items()):
                while messages and next(iter(messages.values()))[0] <= bound:
                    del messages[next(iter(messages))]
                if not messages:
                    del stream.messages[producer]

    def existing(self, key: bytes) -> Stream:
        if key not in self.streams:
            raise Refused("ERR no such key")
        return self.streams[key]

    # ------------------------------------------------------------------ adding and removing

    def xadd(
        self,
        key: bytes,
        wanted: Id | int | None,
        fields: list[bytes],
        *,
        create: bool = True,
        trim: Trim | None = None,
        message: tuple[bytes, bytes] | None = None,
    ) -> bytes | None:
        """Add an entry; ``wanted`` is an id, only its milliseconds (``ms-*``), or None (``*``)."""
        if wanted == ZERO:
            raise Refused("ERR The ID specified in XADD must be greater than 0-0")
        stream = self.streams.get(key)
        if stream is None and not create:
            return None
        if stream and message and message[1] in stream.messages.get(message[0], {}):
            stream.duplicates += 1
            return text(stream.messages[message[0]][message[1]])
        last = stream.last if stream else ZERO
        if last == TOP:
            raise Refused("ERR The stream has exhausted the last possible ID, unable to add more items")
        if wanted is None:
            entry = (self.now, 0) if self.now > last[0] else following(last)
        elif isinstance(wanted, int):
            entry = following(last) if last[0] == wanted and last[1] < TOP[1] else (wanted, 0)
        else:
            entry = wanted
        if entry <= last:
            raise Refused("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        stream = self.create(key)
        if not stream.nodes or self.is_full(stream, fields):
            stream.nodes.append([])
        stream.ever[entry] = fields
        stream.nodes[-1].append(entry)
        stream.entries[entry] = fields
        stream.last = entry
        stream.added += 1
        if message:
            messages = stream.messages.setdefault(message[0], {})
            messages[message[1]] = entry
            stream.remembered += 1
            while len(messages) > stream.maxsize:
                del messages[next(iter(messages))]
        if trim:
            self.trim(stream, trim)
        return text(entry)

    def is_full(self, stream: Stream, fields: list[bytes]) -> bool:
        """Return True if the newest node has no room for an entry of these fields."""
        node = stream.nodes[-1]
        if len(node) >= self.node_entries:
            return True
        return self.node_bytes > 0 and stream.node_size(node) + sum(map(len, fields)) >= self.node_bytes

    def xtrim(self, key: bytes, trim: Trim) -> int:
        stream = self.streams.get(key)
        return self.trim(stream, trim) if stream else 0

    def trim(self, stream: Stream, trim: Trim) -> int:
        removed = 0
        limit = 100 * self.node_entries if trim.limit is None else trim.limit
        for node in list(stream.nodes):
            live = [entry for entry in node if entry in stream.entries]
            if isinstance(trim.threshold, int) and len(stream.entries) <= trim.threshold:
                break
            if trim.approximate and limit and removed + len(live) > limit:
                break
            whole = self.whole(stream, node, len(live), trim)
            if trim.approximate and trim.policy == "KEEPREF" and not whole:
                break
            for entry in live:
                if not self.surplus(stream, entry, trim):
                    break
                if trim.policy == "ACKED" and stream.referenced(entry):
                    continue
                del stream.entries[entry]
                removed += 1
                if trim.policy == "DELREF":
                    stream.unreference(entry)
            if not whole:
                break  # this node stays, with or without something in it
            if not any(entry in stream.entries for entry in node):
                stream.nodes.remove(node)
        return removed

    @staticmethod
    def surplus(stream: Stream, entry: Id, trim: Trim) -> bool:
        if isinstance(trim.threshold, int):
            return len(stream.entries) > trim.threshold
        return entry < trim.threshold

    @staticmethod
    def whole(stream: Stream, node: list[Id], live: int, trim: Trim) -> bool:
        if isinstance(trim.threshold, int):
            return len(stream.entries) - live >= trim.threshold
        return node[-1] < trim.threshold

    def xdel(self, key: bytes, ids: list[Id]) -> int:
        stream = self.streams.get(key)
        return sum(self.strike(stream, entry) for entry in ids) if stream else 0

    @staticmethod
    def strike(stream: Stream, entry: Id) -> bool:
        if not stream.remove(entry):
            return False
        stream.gone = max(stream.gone, entry)
        return True

    def xdelex(self, key: bytes, policy: str, ids: list[Id]) -> list[int]:
        stream = self.streams.get(key)
        if stream is None:
            return [-1] * len(ids)
        answers = []
        for entry in ids:
            if policy == "ACKED" and stream.referenced(entry):
                answers.append(2)
                continue
            answers.append(1 if self.strike(stream, entry) else -1)
            if policy == "DELREF":
                stream.unreference(entry)
        return answers

    def xsetid(self, key: bytes, last: Id, added: int | None, gone: Id) -> None:
        if last < gone:
            raise Refused("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        stream = self.existing(key)
        if last < stream.gone:
            raise Refused("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")
        if stream.entries and last < stream.newest:
            raise Refused("ERR The ID specified in XSETID is smaller than the target stream top item")
        if stream.entries and added is not None and added < len(stream.entries):
            raise Refused("ERR The entries_added specified in XSETID is smaller than the target stream length")
        stream.last = last
        stream.bury_above(last)
        stream.trusted = False
        stream.added = stream.added if added is None else added
        stream.gone = gone if gone != ZERO else stream.gone

    def xcfgset(self, key: bytes, duration: int | None, maxsize: int | None) -> None:
        stream = self.existing(key)
        before = (stream.duration, stream.maxsize)
        stream.duration = duration or stream.duration
        stream.maxsize = maxsize or stream.maxsize
        if before != (stream.duration, stream.maxsize):
            stream.messages = {}

    def xidmprecord(self, key: bytes, producer: bytes, message: bytes, entry: Id) -> None:
        stream = self.existing(key)
        if entry not in stream.entries:
            raise Refused("ERR No such message in stream")
        messages = stream.messages.get(producer, {})
        if message in messages:
            if messages[message] != entry:
                raise Refused("ERR IID already exists for this producer with a different stream ID")
            return
        stream.messages[producer] = messages
        messages[message] = entry
        stream.remembered += 1
        while len(messages) > stream.maxsize:
            del messages[next(iter(messages))]

    # ------------------------------------------------------------------ reading

    def xrange(self, key: bytes, start: Id, end: Id, count: int | None, *, backwards: bool) -> list[object] | None:
        stream = self.streams.get(key)
        if stream is None:
            return []
        if count is not None and count <= 0:
            return None
        found = stream.between(start, end)
        if backwards:
            found.reverse()
        return [stream.row(entry) for entry in found[:count]]

    def xread(self, read: Read, wanted: list[tuple[bytes, Id | str]]) -> list[object] | None:
        """Read; ``wanted`` has keys, each with an id, ``$`` or ``+``."""
        budget, reply = Budget(read), []
        for key, after in wanted:
            stream = self.streams.get(key)
            if budget.spent() or not stream or not stream.entries or after == "$":
                continue
            found = [entry for entry in sorted(stream.entries) if after == "+" or entry > after]
            if not found:
                continue
            most = min(1, budget.most()) if after == "+" else budget.most()
            rows = [stream.row(entry) for entry in (found[-1:] if after == "+" else found)]
            budget.header(key)
            reply.append([key, self.emit(budget, iter(rows), most)])
        return reply or None

    @staticmethod
    def emit(budget: Budget, rows: Iterator[list[object]], most: int) -> list[object]:
        shown: list[object] = []
        while len(shown) < most and not budget.spent():
            row = next(rows, None)
            if row is None:
                break
            budget.add(row)
            shown.append(row)
        budget.size += len(b"*%d\r\n" % len(shown))
        return shown

    def xreadgroup(
        self,
        read: Read,
        name: bytes,
        consumer: bytes,
        wanted: list[tuple[bytes, Id | str]],
        *,
        claim: int | None = None,
        noack: bool = False,
    ) -> list[object] | None:
        """Read in a group; ``wanted`` has keys, each with an id or ``>``."""
        for key, _ in wanted:
            if key not in self.streams or name not in self.streams[key].groups:
                line = f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}'"
                raise Refused(f"{line} in XREADGROUP with GROUP option")
        budget, reply = Budget(read), []
        for key, after in wanted:
            if budget.spent():
                break
            stream = self.streams[key]
            group = stream.groups[name]
            group.attend(consumer, self.now)
            if isinstance(after, tuple):
                claim = None
                budget.header(key)
                rows = self.history(stream, group, consumer, after)
                reply.append([key, self.emit(budget, rows, budget.most())])
                continue
            stale = self.stale(stream, group, claim)
            if stale or stream.newest > group.last:
                budget.header(key)
                rows = self.news(stream, group, consumer, stale, claim=claim is not None, noack=noack)
                reply.append([key, self.emit(budget, rows, budget.most())])
        return reply or None

    def history(self, stream: Stream, group: Group, consumer: bytes, after: Id) -> Iterator[list[object]]:
        for record in group.of(consumer):
            if record.id <= after:
                continue
            if record.id not in stream.entries:
                yield [text(record.id), None]
                continue
            group.put(record.id, consumer, self.now, min(record.count + 1, MOST))
            yield stream.row(record.id)

    def stale(self, stream: Stream, group: Group, claim: int | None) -> list[Record]:
        if claim is None:
            return []
        records = [record for record in group.records if record.id in stream.entries]
        return [record for record in records if claim == 0 or self.now - record.time >= claim]

    def news(
        self, stream: Stream, group: Group, consumer: bytes, stale: list[Record], *, claim: bool, noack: bool
    ) -> Iterator[list[object]]:
        for record in stale:
            idle, count = max(self.now - record.time, 0), record.count
            group.put(record.id, consumer, self.now, min(count + 1, MOST))
            group.active[consumer] = self.now
            yield [*stream.row(record.id), idle, count]
        for entry in [entry for entry in sorted(stream.entries) if entry > group.last]:
            self.advance(stream, group, entry)
            if not noack:
                group.put(entry, consumer, self.now, 1)
                group.active[consumer] = self.now
            yield [*stream.row(entry), 0, 0] if claim else stream.row(entry)

    @staticmethod
    def advance(stream: Stream, group: Group, entry: Id) -> None:
        if group.read is not None and group.last >= stream.first and not stream.ahead_is_gap(group.last):
            group.read += 1
        elif stream.added:
            group.read = stream.distance(entry)
        group.last = entry

    # ------------------------------------------------------------------ groups

    def keyed(self, key: bytes) -> Stream:
        if key not in self.streams:
            raise Refused(
                "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
                "MKSTREAM option to create an empty stream automatically."
            )
        return self.streams[key]

    def grouped(self, key: bytes, name: bytes, stream: Stream) -> Group:
        if name not in stream.groups:
            raise Refused(f"NOGROUP No such consumer group '{name.decode()}' for key name '{key.decode()}'")
        return stream.groups[name]

    def group_create(self, key: bytes, name: bytes, last: Id | None, read: int | None, *, make: bool) -> None:
        """Create a group; None as ``last`` stands for ``$``."""
        stream = self.create(key) if make else self.keyed(key)
        if name in stream.groups:
            raise Refused("BUSYGROUP Consumer Group name already exists")
        known = None if read is None else min(read, stream.added)
        stream.groups[name] = Group(stream.last if last is None else last, known, trusted=read is None)

    def group_setid(self, key: bytes, name: bytes, last: Id | None, read: int | None) -> None:
        stream = self.keyed(key)
        group = self.grouped(key, name, stream)
        group.last = stream.last if last is None else last
        group.read = None if read is None else min(read, stream.added)
        group.trusted = read is None

    def group_destroy(self, key: bytes, name: bytes) -> int:
        return int(self.keyed(key).groups.pop(name, None) is not None)

    def group_createconsumer(self, key: bytes, name: bytes, consumer: bytes) -> int:
        group = self.grouped(key, name, self.keyed(key))
        if consumer in group.seen:
            return 0
        group.attend(consumer, self.now)
        return 1

    def group_delconsumer(self, key: bytes, name: bytes, consumer: bytes) -> int:
        group = self.grouped(key, name, self.keyed(key))
        held = [record for record in group.records if record.owner == consumer]
        for record in held:
            group.drop(record.id)
        group.seen.pop(consumer, None)
        group.active.pop(consumer, None)
        return len(held)

    # ------------------------------------------------------------------ pending entries

    def either(self, key: bytes, name: bytes) -> tuple[Stream, Group]:
        if key not in self.streams or name not in self.streams[key].groups:
            raise Refused(f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}'")
        return self.streams[key], self.streams[key].groups[name]

    def xack(self, key: bytes, name: bytes, ids: list[Id]) -> int:
        try:
            _, group = self.either(key, name)
        except Refused:
            return 0
        return sum(group.drop(entry) for entry in ids)

    def xackdel(self, key: bytes, name: bytes, policy: str, ids: list[Id]) -> list[int]:
        try:
            stream, group = self.either(key, name)
        except Refused:
            return [-1] * len(ids)
        answers = []
        for entry in ids:
            if not group.drop(entry):
                answers.append(-1)
            elif policy == "ACKED" and stream.referenced(entry):
                answers.append(2)
            else:
                if policy == "DELREF":
                    stream.unreference(entry)
                self.strike(stream, entry)
                answers.append(1)
        return answers

    def xnack(self, key: bytes, name: bytes, mode: str, ids: list[Id], retry: int | None, *, force: bool) -> int:
        stream, group = self.either(key, name)
        done = 0
        for entry in ids:
            record = group.find(entry)
            if record is None and not (force and entry in stream.entries):
                continue
            count = record.count if record else 0
            changed = {"SILENT": max(count - 1, 0), "FAIL": count, "FATAL": MOST}[mode]
            group.release(entry, changed if retry is None else retry)
            done += 1
        return done

    def xpending(self, key: bytes, name: bytes) -> list[object]:
        _, group = self.either(key, name)
        if not group.records:
            return [0, None, None, None]
        shares = [[name, b"%d" % len(group.of(name))] for name in sorted(group.seen) if group.of(name)]
        ids = [record.id for record in group.records]
        return [len(ids), text(min(ids)), text(max(ids)), shares]

    def xpending_rows(
        self, key: bytes, name: bytes, idle: int, start: Id, end: Id, count: int, consumer: bytes | None
    ) -> list[object]:
        _, group = self.either(key, name)
        rows: list[object] = []
        for record in group.by_id():
            if not start <= record.id <= end or (consumer is not None and record.owner != consumer):
                continue
            waited = max(self.now - record.time, 0)
            if record.owner is None:
                rows.append([text(record.id), b"", -1, record.count])
            elif waited >= idle:
                rows.append([text(record.id), record.owner, waited, record.count])
        return rows[: max(count, 0)]

    def xclaim(
        self,
        key: bytes,
        name: bytes,
        consumer: bytes,
        idle: int,
        ids: list[Id],
        *,
        time: int | None = None,
        retry: int | None = None,
        force: bool = False,
        just_id: bool = False,
        last: Id | None = None,
    ) -> list[object]:
        stream, group = self.either(key, name)
        if last is not None and last > group.last:
            group.last = last
            group.trusted = False
        group.attend(consumer, self.now)
        moment = self.now if time is None or time < 0 or time > self.now else time
        reply: list[object] = []
        for entry in ids:
            record = group.find(entry)
            if entry not in stream.entries:
                group.drop(entry)
                continue
            if record is None and not force:
                continue
            stays = idle > 0 and record and record.owner is not None and self.now - record.time < idle
            if not stays:
                count = record.count if record else 1
                if retry is not None:
                    count = retry
                elif not just_id:
                    count = min(count + 1, MOST)
                group.put(entry, consumer, moment, count)
                group.active[consumer] = self.now
                reply.append(text(entry) if just_id else stream.row(entry))
        return reply

    def xautoclaim(
        self, key: bytes, name: bytes, consumer: bytes, idle: int, start: Id, count: int, *, just_id: bool
    ) -> list[object]:
        stream, group = self.either(key, name)
        group.attend(consumer, self.now)
        claimed: list[object] = []
        gone: list[object] = []
        looked = 0
        cursor = ZERO
        for record in group.by_id():
            if record.id < start:
                continue
            if len(claimed) + len(gone) == count or looked == 10 * count:
                cursor = record.id
                break
            looked += 1
            if record.id not in stream.entries:
                group.drop(record.id)
                gone.append(text(record.id))
            elif record.owner is None or idle <= 0 or self.now - record.time >= idle:
                group.put(record.id, consumer, self.now, record.count if just_id else min(record.count + 1, MOST))
                group.active[consumer] = self.now
                claimed.append(text(record.id) if just_id else stream.row(record.id))
        return [text(cursor), claimed, gone]

    # ------------------------------------------------------------------ XINFO

    def numbers(self, stream: Stream) -> list[list[object]]:
        return [
            [b"length", len(stream.entries)],
            [b"radix-tree-keys", len(stream.nodes)],
            [b"last-generated-id", text(stream.last)],
            [b"max-deleted-entry-id", text(stream.gone)],
            [b"entries-added", stream.added],
            [b"recorded-first-entry-id", text(stream.first)],
            [b"idmp-duration", stream.duration],
            [b"idmp-maxsize", stream.maxsize],
            [b"pids-tracked", len(stream.messages)],
            [b"iids-tracked", sum(map(len, stream.messages.values()))],
            [b"iids-added", stream.remembered],
            [b"iids-duplicates", stream.duplicates],
        ]

    def xinfo_stream(self, key: bytes) -> list[list[object]]:
        stream = self.existing(key)
        ends = [stream.row(entry) if stream.entries else None for entry in (stream.first, stream.newest)]
        names = [b"groups", b"first-entry", b"last-entry"]
        return self.numbers(stream) + [
            [name, value] for name, value in zip(names, [len(stream.groups), *ends], strict=True)
        ]

    def xinfo_full(self, key: bytes, count: int) -> list[list[object]]:
        stream = self.existing(key)
        shown = count or None
        entries = [stream.row(entry) for entry in sorted(stream.entries)[:shown]]
        groups = [self.full_group(stream, name, group, shown) for name, group in sorted(stream.groups.items())]
        return [*self.numbers(stream), [b"entries", entries], [b"groups", groups]]

    def position(self, stream: Stream, group: Group) -> list[list[object]]:
        return [[b"last-delivered-id", text(group.last)], [b"entries-read", group.read], [b"lag", stream.lag(group)]]

    def full_group(self, stream: Stream, name: bytes, group: Group, shown: int | None) -> list[list[object]]:
        pending = [[text(one.id), one.owner or b"", one.time, one.count] for one in group.by_id()[:shown]]
        consumers = [
            [
                [b"name", consumer],
                [b"seen-time", group.seen[consumer]],
                [b"active-time", group.active[consumer]],
                [b"pel-count", len(group.of(consumer))],
                [b"pending", [[text(one.id), one.time, one.count] for one in group.of(consumer)[:shown]]],
            ]
            for consumer in sorted(group.seen)
        ]
        return [
            [b"name", name],
            *self.position(stream, group),
            [b"pel-count", len(group.records)],
            [b"nacked-count", len(group.released())],
            [b"pending", pending],
            [b"consumers", consumers],
        ]

    def xinfo_groups(self, key: bytes) -> list[list[list[object]]]:
        stream = self.existing(key)
        return [
            [
                [b"name", name],
                [b"consumers", len(group.seen)],
                [b"pending", len(group.records)],
                *self.position(stream, group),
            ]
            for name, group in sorted(stream.groups.items())
        ]

    def xinfo_consumers(self, key: bytes, name: bytes) -> list[list[list[object]]]:
        group = self.grouped(key, name, self.existing(key))
        return [
            [
                [b"name", consumer],
                [b"pending", len(group.of(consumer))],
                [b"idle", max(self.now - group.seen[consumer], 0)],
                [b"inactive", -1 if group.active[consumer] < 0 else max(self.now - group.active[consumer], 0)],
            ]
            for consumer in sorted(group.seen)
        ]
