"""Entries of an archive or a stream written into a stream again, each once, at the speed they came in or another.

Every transaction at the target holds entries and the cursor that says how far they reach, and it happens only if the
cursor is where this replay left it. So a replay that was killed, or lost its connection in the midst of a transaction,
goes on after the last entry that is there; and two of the same replay do not mix.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from millstream.client.url import CLUSTERS, SENTINELS, SERVERS, without_password
from millstream.errors import ConfigError, MillstreamError, UsageError
from millstream.paths import local_path
from millstream.spark.archiving.directory import Folder
from millstream.spark.archiving.files import archived
from millstream.spark.arrow.page import Page, Want
from millstream.spark.connection import routing
from millstream.spark.connection.connection import control_client
from millstream.spark.connection.retry import retrying
from millstream.spark.model.offsets import MAX_PART, ZERO, Id, Range, before_time, parse_id
from millstream.spark.options.common import find_url
from millstream.spark.options.read import parse as parse_options
from millstream.spark.read.pages import Pages
from millstream.spark.read.planner import Planner
from millstream.spark.read.reader import overtaken, report

if TYPE_CHECKING:
    import redis

    from millstream.spark.options.read import Options

BATCH = 500
BATCH_BYTES = 4 << 20
BEAT_MS = 50
"""With a speed, entries so close to each other are written at once."""

LOOK_SECONDS = 0.2
CURSOR_DAYS = 7
"""How long the target remembers a replay that is done."""

Tell = Callable[[str, int, int], None]
Fields = list[tuple[bytes, bytes]]
_LAST = Id(MAX_PART, MAX_PART)


class ReplayError(MillstreamError):
    """The target did not take the entries; what was written before stays, with its cursor."""


@dataclass(frozen=True)
class Replay:
    """What is replayed, and how.

    Attributes:
        source: directory of an archive, or URL of a server.
        stream: key there.
        target: URL of the server that gets the entries.
        into: key there.
        since_ms: entries from this time on; None for the beginning.
        until_ms: entries before this time; None for the end as it is when the replay begins.
        where: field and value that an entry must have, each of them.
        speed: 1 for as fast as they came in, 10 for ten times; None for as fast as it goes.
        ids: ``keep`` writes the entries under their own ids, ``new`` under new ones.
        id_field: with ``new``, a field that gets the old id; None for none.
        name: of the replay: one that was broken off goes on under the same name; None makes one of all that is above.
    """

    source: str
    stream: str
    target: str
    into: str
    since_ms: int | None = None
    until_ms: int | None = None
    where: tuple[tuple[bytes, bytes], ...] = ()
    speed: float | None = None
    ids: Literal["keep", "new"] = "new"
    id_field: bytes | None = None
    name: str | None = None

    @property
    def cursor_key(self) -> str:
        """Where the target keeps how far this is; in the hash slot of the stream, for a cluster."""
        name = self.name
        if name is None:
            name = hashlib.sha256(self.description).hexdigest()[:16]
        tag = self.into if "{" in self.into else f"{{{self.into}}}"
        return f"millstream:replay:{name}:{tag}"

    @property
    def description(self) -> bytes:
        """What must be the same for one run to go on where another ended."""
        # Without the source's password: the target keeps this, and a replay goes on when that was changed.
        facts = [without_password(self.source), self.stream, self.since_ms, self.until_ms, self.ids, repr(self.where)]
        return json.dumps(facts).encode()


@dataclass
class Done:
    """What a replay came to.

    Attributes:
        read: entries looked at by this run.
        written: entries written, over all its runs.
        skipped: entries that the filter left out, by this run.
        resumed_after: last id of the run before; None for a new one.
        last: id of the last entry looked at.
        finished: False when it was told to stop.
        before: True when an earlier run had finished it, and this one had nothing to do.
    """

    read: int = 0
    written: int = 0
    skipped: int = 0
    resumed_after: str | None = None
    last: str | None = None
    finished: bool = False
    before: bool = False


@dataclass
class _Batch:
    """Entries on their way to the target, and how far they reach."""

    entries: list[tuple[Id, Fields]] = field(default_factory=list)
    first: Id | None = None
    last: Id = ZERO
    bytes: int = 0


def replay(
    what: Replay,
    stop: Callable[[], bool] = lambda: False,
    tell: Tell = lambda _what, _done, _all: None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Done:
    """Run a replay to its end, or on from where it was broken off.

    Args:
        what: is replayed.
        stop: asked between batches and several times a second while waiting; true ends it.
        tell: progress, in entries looked at.
        wait: lets seconds pass.
        clock: seconds that only go forward.

    Raises:
        ConfigError: a URL or directory is invalid, or the stream is not there.
        UsageError: its name is that of another replay.
        ReplayError: the target refused the entries.
    """
    folder = None if what.source.startswith(SERVERS) else _folder(what.source)
    target = _Target(what)
    try:
        done = Done()
        after = target.begin(done)
        if done.finished:
            return done
        source = _source(what, folder, after)
        pace = _Pace(what.speed, clock)
        tell("replayed", 0, source.total)
        for batch in _batches(what, source.pages(), done):
            if not _ripe(batch, pace, stop, wait):
                return done
            target.write(batch, done)
            tell("replayed", done.read, max(done.read, source.total))
        target.finish()
        done.finished = True
        return done
    finally:
        target.close()


# --- where entries come from -----------------------------------------------------------------------------------------


@dataclass
class _ReplaySource:
    """Pages of entries, and about how many there are."""

    pages: Callable[[], Iterator[Page]]
    total: int


def _folder(source: str) -> Folder:
    try:
        return Folder(local_path(source))
    except ConfigError as problem:
        raise ConfigError(
            f"the source is neither a server's URL, such as redis://host:6379/0, nor an archive's directory: {problem}"
        ) from None


def _source(what: Replay, folder: Folder | None, after: Id) -> _ReplaySource:
    low = max(after, ZERO if what.since_ms is None else before_time(what.since_ms))
    high = _LAST if what.until_ms is None else before_time(what.until_ms)
    return _from_stream(what, low, high) if folder is None else _from_archive(what, folder, low, high)


def _from_archive(what: Replay, folder: Folder, low: Id, high: Id) -> _ReplaySource:
    manifest = folder.read()
    if what.stream not in manifest.places:
        there = ", ".join(sorted(manifest.places)) or "nothing"
        raise ConfigError(f"the archive {what.source} does not have stream {what.stream!r}: it has {there}")
    files = manifest.of(what.stream, low, high)
    paths = [file.path for file in files]
    high = min(high, manifest.place(what.stream).id)
    return _ReplaySource(
        lambda: archived(folder, what.stream, low, high, paths, Want(listed=True)), sum(file.rows for file in files)
    )


def _from_stream(what: Replay, low: Id, high: Id) -> _ReplaySource:
    options = parse_options(
        {
            "url": what.source,
            "stream": what.stream,
            "startingOffsets": json.dumps({what.stream: str(low)}),
            "endingOffsets": json.dumps({what.stream: str(high)}),
            "minPartitions": "1",
        }
    )
    planner = Planner(options)
    try:
        ranges = planner.bounded(options.starting or "earliest", options.ending)
    finally:
        planner.close()
    return _ReplaySource(lambda: _live(options, ranges), sum(part.rows for part in ranges))


def _live(options: "Options", ranges: Sequence[Range]) -> Iterator[Page]:
    """The entries of a stream; an error when it is trimmed past the place where this reads."""
    for whole in ranges:
        pages = Pages(options.url, whole.key, whole.start, whole.end)
        try:
            while not pages.done:
                before = pages.cursor
                pages.ask()
                page, first = pages.decode(pages.receive(), Want(listed=True))
                if not pages.doubtful and overtaken(whole, before, page, first):
                    report(options, whole, warn=True)
                if page is not None:
                    yield page
        finally:
            pages.close()


def _batches(what: Replay, pages: Iterator[Page], done: Done) -> Iterator[_Batch]:
    """What the filter lets through, in batches; entries that it does not are counted and passed over."""
    batch = _Batch()
    for page in pages:
        assert page.listed is not None
        for text, row in zip(page.ids.to_pylist(), page.listed.to_pylist(), strict=True):
            ident, fields = parse_id(text), [(pair["name"], pair["value"]) for pair in row]
            if batch.last != ZERO and _full(what, batch, ident):
                yield batch
                batch = _Batch()
            done.read += 1
            batch.first = batch.first or ident
            batch.last = ident
            if all(pair in fields for pair in what.where):
                batch.entries.append((ident, fields))
                batch.bytes += sum(len(name) + len(value) for name, value in fields)
            else:
                done.skipped += 1
        if batch.last != ZERO and what.speed is None:
            yield batch
            batch = _Batch()
    if batch.last != ZERO:
        yield batch


def _full(what: Replay, batch: _Batch, following: Id) -> bool:
    """Whether an entry goes into the next batch: this one is large, or lies too far back in time to be one beat."""
    if len(batch.entries) >= BATCH or batch.bytes >= BATCH_BYTES:
        return True
    assert batch.first is not None
    return what.speed is not None and following.ms - batch.first.ms > BEAT_MS * what.speed


class _Pace:
    """When a batch is due.

    Args:
        speed: see :class:`Replay`.
        clock: seconds that only go forward.
    """

    def __init__(self, speed: float | None, clock: Callable[[], float]) -> None:
        self._speed = speed
        self._clock = clock
        self._zero: tuple[float, int] | None = None

    def left(self, batch: _Batch) -> float:
        """Seconds until then; the first batch is due at once."""
        if self._speed is None or batch.first is None:
            return 0.0
        if self._zero is None:
            self._zero = self._clock(), batch.first.ms
        began, first_ms = self._zero
        return began + (batch.first.ms - first_ms) / 1000 / self._speed - self._clock()


def _ripe(batch: _Batch, pace: _Pace, stop: Callable[[], bool], wait: Callable[[float], None]) -> bool:
    """Wait until a batch is due; False when told to stop before."""
    while not stop():
        left = pace.left(batch)
        if left <= 0:
            return True
        wait(min(left, LOOK_SECONDS))
    return False


# --- where they go ---------------------------------------------------------------------------------------------------


class _Target:
    """The stream that is written, and the cursor beside it.

    Args:
        what: is replayed.
    """

    def __init__(self, what: Replay) -> None:
        if (what.source, what.stream) == (what.target, what.into):
            raise self._itself(what)
        try:
            find_url({"url": what.target})
        except ConfigError as problem:
            raise ConfigError(f"the target (--to): {problem}") from None
        self._what = what
        self._key = what.cursor_key
        self._after = ZERO
        self._written = 0
        self._client: redis.Redis | None = None

    @staticmethod
    def _itself(what: Replay) -> ConfigError:
        return ConfigError(f"stream {what.into!r} would be replayed into itself: name another one for the copy")

    def close(self) -> None:
        """Give the connection back."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def begin(self, done: Done) -> Id:
        """The id after which this replay goes on.

        Raises:
            ConfigError: the target cannot be reached.
            UsageError: the name is that of another replay.
        """
        import redis  # noqa: PLC0415 - help does not wait for it

        try:
            client = self._connected()
            noted: Any = client.hgetall(self._key)
            kind: Any = client.type(self._what.into)
        except (redis.RedisError, OSError, ValueError) as reason:
            shown = parse_options({"url": self._what.target, "stream": "-"}).shown_url
            raise ConfigError(f"cannot talk to the target {shown} ({reason}): start it or correct --to") from None
        if kind not in (b"none", b"stream"):
            raise ConfigError(f"{self._what.into!r} at the target is a {kind.decode()}: name a stream")
        self._check_apart()
        if not noted:
            return ZERO
        try:
            self._after = parse_id(noted[b"after"].decode())
            done.resumed_after, done.written = str(self._after), int(noted[b"written"])
            description = noted[b"what"]
        except (KeyError, ValueError):
            raise UsageError(
                f"{self._key} at the target, where this replay has noted how far it is, was changed by somebody else: "
                "DEL it and replay into a new stream"
            ) from None
        self._written = done.written
        if description != self._what.description:
            raise UsageError(f"the replay {self._what.name!r} at the target is of something else: give another --name")
        done.finished = done.before = b"done" in noted
        return self._after

    def _check_apart(self) -> None:
        """Raise if the source is this stream by another URL: ``localhost``, another user, no database named."""
        what = self._what
        if what.stream != what.into or not what.source.startswith(SERVERS):
            return
        assert self._client is not None
        # A source that cannot be asked now tells so when it is read.
        with contextlib.suppress(*_unknown()), control_client(what.source) as source:
            if _server(source) == _server(self._client):
                raise self._itself(what)

    def write(self, batch: _Batch, done: Done) -> None:
        """Add a batch and move the cursor, both or neither.

        Raises:
            ReplayError: the target refused, or the cursor was moved by somebody else.
        """
        import redis  # noqa: PLC0415 - help does not wait for it

        try:
            self._again(lambda: self._transact(batch, done))
        except redis.ResponseError as reason:
            raise ReplayError(
                f"the target refused the entries {batch.first} to {batch.last}: {reason}. {done.written} entries are "
                "there; mend it and run the same command again"
            ) from None
        self._after, self._written = batch.last, done.written

    def _transact(self, batch: _Batch, done: Done) -> None:
        import redis  # noqa: PLC0415 - help does not wait for it

        client = self._connected()
        written = done.written + len(batch.entries)
        while True:
            pipe: Any  # redis-py's pipelines are not typed
            with client.pipeline(transaction=True) as pipe:
                pipe.watch(self._key)
                if self._seen(pipe, batch):
                    break
                if self._what.ids == "keep" and batch.entries:
                    pipe.watch(self._what.into)
                    self._check_room(pipe, batch.entries[0][0])
                pipe.multi()
                for ident, fields in batch.entries:
                    pipe.execute_command("XADD", *self._words(ident, fields))
                pipe.hset(
                    self._key,
                    mapping={"after": str(batch.last), "written": written, "what": self._what.description},
                )
                try:
                    replies = pipe.execute(raise_on_error=False)[: len(batch.entries)]
                except redis.WatchError:
                    continue
                self._check_added(batch, replies)
                break
        done.written, done.last = written, str(batch.last)

    def _check_added(self, batch: _Batch, replies: list[Any]) -> None:
        """Raise if XADD failed inside the transaction, as it does when the key has become something else meanwhile.

        The cursor moved all the same, so it is set back to the last entry that is there: else the next run would pass
        over the others. Entries are added in order, and what hinders one hinders those after it.
        """
        import redis  # noqa: PLC0415 - help does not wait for it

        added = next((at for at, reply in enumerate(replies) if isinstance(reply, redis.RedisError)), len(replies))
        if added == len(replies):
            return
        assert self._client is not None
        if added:
            self._after, self._written = batch.entries[added - 1][0], self._written + added
        if self._after == ZERO:
            self._client.delete(self._key)
        else:
            self._client.hset(self._key, mapping={"after": str(self._after), "written": self._written})
        raise replies[added]

    def _seen(self, pipe: Any, batch: _Batch) -> bool:
        """Whether the batch is there: the reply to an attempt may be lost where the attempt was not."""
        there = pipe.hget(self._key, "after")
        found = there.decode(errors="backslashreplace") if there else str(ZERO)
        if found not in (str(self._after), str(batch.last)):
            raise ReplayError(
                f"the cursor of this replay was moved to {found} by somebody else: it runs twice, or the target was "
                "emptied or restored. This run wrote nothing more; run it again"
            )
        return bool(found == str(batch.last))

    def _check_room(self, pipe: Any, first: Id) -> None:
        """Before a transaction, which would be half done if the server refused an id in its midst."""
        import redis  # noqa: PLC0415 - help does not wait for it

        try:
            last = parse_id(pipe.xinfo_stream(self._what.into)["last-generated-id"].decode())
        except redis.ResponseError:
            return  # there is no such stream yet
        if last >= first:
            raise ReplayError(
                f"stream {self._what.into!r} has ids up to {last}, and {first} would come after it: with --ids keep "
                "the target must be new or behind. Take another stream, or --ids new"
            )

    def _words(self, ident: Id, fields: Fields) -> list[Any]:
        parts = [part for pair in fields for part in pair]
        if self._what.ids == "keep":
            return [self._what.into, str(ident), *parts]
        origin = [] if self._what.id_field is None else [self._what.id_field, str(ident)]
        return [self._what.into, "*", *origin, *parts]

    def finish(self) -> None:
        """Remember for a while that it is done."""

        def once() -> None:
            client = self._connected()
            with client.pipeline(transaction=True) as pipe:
                if not client.exists(self._key):  # nothing was to be replayed
                    pipe.hset(
                        self._key,
                        mapping={"after": str(self._after), "written": 0, "what": self._what.description},
                    )
                pipe.hset(self._key, "done", 1)
                pipe.expire(self._key, CURSOR_DAYS * 86400)
                pipe.execute()

        self._again(once)

    def _connected(self) -> "redis.Redis":
        """The client of the server that has the target, whoever that is when it is made."""
        if self._client is None:
            self._client = control_client(routing.server_of(self._what.target, self._key))
        return self._client

    def _again(self, work: Callable[[], None]) -> None:
        """Do what may be done again: while the server is away, and where another one has the target now."""
        from redis import exceptions as refusals  # noqa: PLC0415 - help does not wait for it

        elsewhere = (
            refusals.AskError,  # and MOVED
            refusals.TryAgainError,
            refusals.ClusterDownError,
            refusals.ReadOnlyError,
        )

        def once() -> None:
            try:
                work()
            except elsewhere as reason:
                if not self._what.target.startswith((CLUSTERS, SENTINELS)):
                    raise
                self._lost()
                raise routing.Redirected(str(reason)) from None
            except (refusals.ConnectionError, refusals.TimeoutError, OSError):
                self._lost()
                raise

        retrying(once)

    def _lost(self) -> None:
        self.close()
        routing.forget(self._what.target)


def _unknown() -> tuple[type[Exception], ...]:
    """Errors after which it is not known which server it is."""
    import redis  # noqa: PLC0415 - help does not wait for it

    return redis.RedisError, OSError, KeyError


def _server(client: "redis.Redis") -> tuple[Any, int]:
    """Which server this is, and which of its databases."""
    info: Any = client.info("server")
    return info["run_id"], client.connection_pool.connection_kwargs.get("db") or 0
