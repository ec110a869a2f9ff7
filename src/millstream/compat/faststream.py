"""FastStream's names for stream subscribers, on Millstream's worker.

::

    from millstream.compat.faststream import AckPolicy, FastStream, Logger, NackMessage, RedisBroker, StreamSub

These names take the same arguments and behave as FastStream documents. Missing features raise an error at once: lists,
channels, requests and replies, routers, custom parsers and decoders, a stream read without a group.
docs/from-faststream.md names every other difference.
"""

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from logging import Logger
from typing import Any, TypeVar

from redis.asyncio import Redis

from millstream.client.payloads import envelope
from millstream.client.url import find_url
from millstream.errors import ConfigError
from millstream.worker.app import App
from millstream.worker.handlers.convert import as_text, lenient
from millstream.worker.handlers.dependencies import Depends
from millstream.worker.handlers.fields import unwrap
from millstream.worker.handlers.message import Message as StreamMessage
from millstream.worker.handlers.middleware import Middleware, Run, RunBatch
from millstream.worker.handlers.subscription import StreamSub as OurSub
from millstream.worker.model.answers import Nack as NackMessage
from millstream.worker.model.answers import Reject as RejectMessage
from millstream.worker.model.retry import Retry
from millstream.worker.publishing import Publisher

__all__ = [
    "AckMessage",
    "AckPolicy",
    "Depends",
    "FastStream",
    "Logger",
    "NackMessage",
    "Redis",
    "RedisBroker",
    "RedisStreamMessage",
    "RejectMessage",
    "StreamMessage",
    "StreamSub",
]

Handler = TypeVar("Handler", bound=Callable[..., Any])


class AckMessage(Exception):  # noqa: N818 - FastStream's name
    """Raised by a handler to acknowledge the entry, even if work remains."""


class RedisStreamMessage(StreamMessage):
    """FastStream's stream message: Millstream's message with FastStream's names.

    ``ack``, ``nack`` and ``reject`` accept FastStream's arguments (``redis=``, ``group=``) and ignore them.
    """

    __slots__ = ()

    @property
    def body(self) -> bytes:
        """The published payload as bytes. For an entry of plain fields, its fields as JSON."""
        flat = self.raw
        if len(flat) == 2:
            return envelope.parse(flat[1]).body if flat[0] == envelope.FIELD else flat[1]
        return json.dumps(as_text(self.fields), default=repr).encode()

    async def decode(self) -> Any:
        """Return the published payload: the value of its JSON, text, or bytes."""
        content = unwrap(self.raw)
        return as_text(content) if isinstance(content, Mapping) else lenient(content)

    @property
    def message_id(self) -> str:
        """The entry's id."""
        return self.id

    @property
    def correlation_id(self) -> str:
        """The correlation id from the headers; without one, the entry's id."""
        return self.headers.get("correlation_id", self.id)

    @property
    def content_type(self) -> str | None:
        """The content type from the headers, or None."""
        return self.headers.get("content-type")

    @property
    def raw_message(self) -> dict[str, Any]:
        """The delivery in FastStream's form: stream, ids, number of earlier deliveries of each, fields."""
        return {
            "type": "stream",
            "channel": self.stream,
            "message_ids": [self.id],
            "delivery_counts": [self.delivery_count - 1],
            "data": self.fields,
        }

    def ack(self, **_: Any) -> Awaitable[None]:
        """Acknowledge the entry, as :meth:`millstream.Message.ack` does."""
        return super().ack()

    def nack(self, delay: float | str | None = None, **_: Any) -> Awaitable[None]:
        """Return the entry for another delivery, as :meth:`millstream.Message.nack` does."""
        return super().nack(delay)

    def reject(self, reason: str = "", **_: Any) -> Awaitable[None]:
        """Reject the entry, as :meth:`millstream.Message.reject` does."""
        return super().reject(reason)


class AckPolicy(Enum):
    """The outcome of an entry when its handler ends.

    ``REJECT_ON_ERROR``, FastStream's default, moves a failed entry to the dead-letter stream at once. ``NACK_ON_ERROR``
    retries it with growing delays. ``ACK`` acknowledges it even after a failure. ``ACK_FIRST`` acknowledges it before
    the handler runs. ``MANUAL`` leaves it to the handler.
    """

    ACK_FIRST = "ack_first"
    ACK = "ack"
    REJECT_ON_ERROR = "reject_on_error"
    NACK_ON_ERROR = "nack_on_error"
    MANUAL = "manual"


@dataclasses.dataclass(frozen=True)
class StreamSub:
    """FastStream's description of a stream.

    ``min_idle_time`` and ``claim_min_idle_time`` mean the same: the subscriber claims idle entries, and reads new ones
    too. ``last_id`` is the start of a group that does not exist yet. Its default is the end of the stream, as in
    FastStream.
    """

    stream: str
    polling_interval: int = 100
    group: str | None = None
    consumer: str | None = None
    batch: bool = False
    no_ack: bool = False
    last_id: str | None = None
    maxlen: int | None = None
    max_records: int | None = None
    min_idle_time: int | None = None
    claim_min_idle_time: int | None = None

    def ours(self) -> OurSub:
        """Return Millstream's own StreamSub with the same settings.

        Raises:
            ConfigError: it has no group.
        """
        if not self.group:
            raise ConfigError(
                f"StreamSub({self.stream!r}) is invalid without a group: every process would read everything, which is "
                "not supported. Give it a group."
            )
        return OurSub(
            self.stream,
            group=self.group,
            consumer=self.consumer,
            min_idle_time=self.claim_min_idle_time or self.min_idle_time,
            start="$" if self.last_id in (None, ">") else str(self.last_id),
            max_records=self.max_records,
            polling_interval=max(self.polling_interval, 1),
            no_ack=self.no_ack,
        )


class _Policy(Middleware):
    """Middleware for FastStream's exceptions and policies that Millstream's outcomes lack."""

    def __init__(self, policy: AckPolicy) -> None:
        self._policy = policy

    async def run(self, call_next: Run, msg: StreamMessage) -> Any:
        return await self._settled(call_next, msg, [msg])

    async def run_batch(self, call_next: RunBatch, msgs: Sequence[StreamMessage]) -> Any:
        return await self._settled(call_next, msgs, msgs)

    async def _settled(self, call: Callable[[Any], Awaitable[Any]], given: Any, msgs: Sequence[StreamMessage]) -> Any:
        if self._policy is AckPolicy.ACK_FIRST:
            for msg in msgs:
                await msg.ack()
        try:
            return await call(given)
        except (NackMessage, RejectMessage):
            raise
        except Exception as error:
            is_done = isinstance(error, AckMessage)
            if not is_done and self._policy is not AckPolicy.ACK:
                raise
            for msg in msgs:
                if not msg.settled:
                    await msg.ack()
            if not is_done:
                raise  # to be logged
        return None


class RedisBroker:
    """FastStream's broker for streams: an :class:`App` with other names.

    Args:
        url: URL of the server; None as for :class:`App`.
        app: the app to register handlers with, instead of a new one.

    Attributes:
        app: Millstream's app, with all its features.
    """

    def __init__(self, url: str | None = None, *, app: App | None = None) -> None:
        self.app = app or App(find_url(url))

    def subscriber(
        self,
        *,
        stream: StreamSub | str,
        ack_policy: AckPolicy = AckPolicy.REJECT_ON_ERROR,
        no_ack: bool = False,
        max_workers: int = 1,
        retry: Retry | None = None,
    ) -> Callable[[Handler], Handler]:
        """Run a function for each entry of a stream, or for batches of them.

        Args:
            stream: the stream to read.
            ack_policy: the outcome of an entry when the function ends.
            no_ack: as in the StreamSub.
            max_workers: largest number of runs at the same time.
            retry: Millstream's retry schedule for ``NACK_ON_ERROR``.

        Raises:
            ConfigError: the stream has no group.
        """
        described = StreamSub(stream) if isinstance(stream, str) else stream
        sub = described.ours()
        if no_ack:
            sub = dataclasses.replace(sub, no_ack=True)
        if ack_policy is AckPolicy.REJECT_ON_ERROR:
            retry = Retry(max_deliveries=1)
        return self.app.subscriber(
            sub,
            retry=retry,
            concurrency=max_workers,
            ack="manual" if ack_policy is AckPolicy.MANUAL and not sub.no_ack else "auto",
            batch=described.batch,
            middlewares=[_Policy(ack_policy)],
        )

    def publisher(self, *, stream: StreamSub | str) -> Publisher:
        """Return a publisher: a decorator that publishes a handler's result, and an object to call."""
        if isinstance(stream, str):
            return self.app.publisher(stream, headers={})
        return self.app.publisher(stream.stream, maxlen=stream.maxlen, headers={})

    async def publish(
        self, message: Any, *, stream: str, maxlen: int | None = None, headers: dict[str, str] | None = None
    ) -> str:
        """Add one entry, in FastStream's envelope, and return its id.

        Args:
            message: the content, see :meth:`millstream.App.publish`.
            stream: key of the stream.
            maxlen: trim the stream to about this many entries.
            headers: headers of the envelope.
        """
        return await self.app.publish(stream, message, maxlen=maxlen, headers=dict(headers or {}))

    async def publish_batch(self, *messages: Any, stream: str, headers: dict[str, str] | None = None) -> list[str]:
        """Add many entries in one round trip and return their ids.

        Args:
            messages: the contents.
            stream: key of the stream.
            headers: headers of every envelope.
        """
        return list(await self.app.publish_batch(stream, messages, headers=dict(headers or {})))

    async def start(self) -> None:
        """Start the app, as :meth:`App.start` does."""
        await self.app.start()

    async def stop(self) -> None:
        """Stop the app, as :meth:`App.stop` does."""
        await self.app.stop()


def FastStream(broker: RedisBroker) -> App:  # noqa: N802 - FastStream's name
    """Return the app. ``millstream run module:app`` runs it as ``faststream run`` runs FastStream's application."""
    return broker.app
