"""The stream that a replay writes, and the cursor next to it, which moves in the same transaction.

The transaction happens only if the cursor is where this replay left it. So if the reply to an attempt was lost, the
cursor shows that it succeeded. The second of two runs stops.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import redis
from redis import exceptions as refusals

from millstream.client.url import CLUSTERS, SENTINELS, SERVERS, login_refused, no_connection, remedy
from millstream.errors import ConfigError, NotLetInError, NotReachedError, UsageError
from millstream.spark.archiving.replay_model import Fields, Replay, ReplayBatch, ReplayError, ReplayResult
from millstream.spark.connection import routing
from millstream.spark.connection.connection import control_client
from millstream.spark.connection.retry import retrying
from millstream.spark.model.offsets import ZERO, Id, parse_id
from millstream.spark.options.common import find_url
from millstream.spark.options.read import parse as parse_options
from millstream.texts import plural

CURSOR_DAYS = 7
"""Days for which the target keeps the cursor of a finished replay."""


class ReplayTarget:
    """The target stream of a replay, with its cursor."""

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
        return ConfigError(f"stream {what.into!r} would be replayed into itself: give another key for the copy")

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def begin(self, done: ReplayResult) -> Id:
        """Return the id after which this replay continues."""
        try:
            client = self._connected()
            noted: Any = client.hgetall(self._key)
            found: Any = client.type(self._what.into)
        except (redis.RedisError, OSError, ValueError) as reason:
            shown = parse_options({"url": self._what.target, "stream": "-"}).shown_url
            kind = NotLetInError if login_refused(reason) else NotReachedError
            step = remedy(self._what.target, reason, "Start it")
            raise kind(f"the target of --to: {no_connection(shown, reason)} {step}, or correct --to.") from None
        if found not in (b"none", b"stream"):
            raise ConfigError(f"{self._what.into!r} at the target is a {found.decode()}. Name a stream.")
        self._check_apart()
        if not noted:
            return ZERO
        try:
            self._after = parse_id(noted[b"after"].decode())
            done.resumed_after, done.written = str(self._after), int(noted[b"written"])
            description = noted[b"what"]
        except (KeyError, ValueError):
            raise UsageError(
                f"{self._key} at the target, the position of this replay, was changed by another program: "
                "DEL it and replay into a new stream"
            ) from None
        self._written = done.written
        if description != self._what.description:
            raise UsageError(
                f"the replay {self._what.name!r} at the target has another source or target. Give another --name."
            )
        done.finished = done.before = b"done" in noted
        return self._after

    def _check_apart(self) -> None:
        """Raise if the source is the target stream by another URL: ``localhost``, another user, no database named."""
        what = self._what
        if what.stream != what.into or not what.source.startswith(SERVERS):
            return
        assert self._client is not None
        # An unreachable source raises its error later, when it is read.
        with contextlib.suppress(redis.RedisError, OSError, KeyError), control_client(what.source) as source:
            if _server(source) == _server(self._client):
                raise self._itself(what)

    def write(self, batch: ReplayBatch, done: ReplayResult) -> None:
        """Add a batch and move the cursor, both or neither."""
        try:
            self._again(lambda: self._transact(batch, done))
        except redis.ResponseError as reason:
            raise ReplayError(
                f"the target refused the entries {batch.first} to {batch.last}: {reason}. "
                f"{plural(done.written, 'entry is', 'entries are')} there; fix the cause and run the same command again"
            ) from None
        self._after, self._written = batch.last, done.written

    def _transact(self, batch: ReplayBatch, done: ReplayResult) -> None:
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
                self._note(pipe, batch.last, written)
                try:
                    replies = pipe.execute(raise_on_error=False)[: len(batch.entries)]
                except redis.WatchError:
                    continue
                self._check_added(batch, replies)
                break
        done.written, done.last = written, str(batch.last)

    def _note(self, pipe: Any, after: Id, written: int) -> None:
        pipe.hset(self._key, mapping={"after": str(after), "written": written, "what": self._what.description})

    def _check_added(self, batch: ReplayBatch, replies: list[Any]) -> None:
        """Raise if XADD failed inside the transaction, for example because the key has another type meanwhile.

        The cursor moved all the same, so it is set back to the last entry that was added. Otherwise the next run would
        skip the missing ones. Entries are added in order, and a failure of one also affects those after it.
        """
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

    def _seen(self, pipe: Any, batch: ReplayBatch) -> bool:
        """Return True if the batch was written already: the reply to a successful attempt may be lost."""
        there = pipe.hget(self._key, "after")
        found = there.decode(errors="backslashreplace") if there else str(ZERO)
        if found not in (str(self._after), str(batch.last)):
            raise ReplayError(
                f"the cursor of this replay was moved to {found} by another program: it runs twice, or the target was "
                "emptied or restored. This run wrote nothing more; run it again"
            )
        return bool(found == str(batch.last))

    def _check_room(self, pipe: Any, first: Id) -> None:
        """Raise if the stream's last id is too high: the server would refuse ids inside the transaction."""
        try:
            last = parse_id(pipe.xinfo_stream(self._what.into)["last-generated-id"].decode())
        except redis.ResponseError:
            return  # the stream does not exist yet
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
        """Mark the replay as finished, for :data:`CURSOR_DAYS` days."""

        def once() -> None:
            client = self._connected()
            with client.pipeline(transaction=True) as pipe:
                if not client.exists(self._key):  # there were no entries to replay
                    self._note(pipe, self._after, 0)
                pipe.hset(self._key, "done", 1)
                pipe.expire(self._key, CURSOR_DAYS * 86400)
                pipe.execute()

        self._again(once)

    def _connected(self) -> "redis.Redis":
        """Return a client of the server that has the target; connect if needed."""
        if self._client is None:
            self._client = control_client(routing.server_of(self._what.target, self._key))
        return self._client

    def _again(self, work: Callable[[], None]) -> None:
        """Retry a repeatable call while the server is away, or on another server that has the target now."""
        # MovedError is a subclass of AskError
        elsewhere = (refusals.AskError, refusals.TryAgainError, refusals.ClusterDownError, refusals.ReadOnlyError)

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


def _server(client: "redis.Redis") -> tuple[Any, int]:
    """Return the server's run id and the number of the database."""
    info: Any = client.info("server")
    return info["run_id"], client.connection_pool.connection_kwargs.get("db") or 0
