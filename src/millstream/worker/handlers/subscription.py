"""The description of a subscriber: its stream, its options, and its function."""

import inspect
import os
import re
import secrets
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from millstream import times
from millstream.client.limits.rate import is_name
from millstream.errors import ConfigError, require
from millstream.worker.handlers.binding import Binder
from millstream.worker.handlers.calling import annotated, check_handler, is_async, name_of, publishers_of, takes
from millstream.worker.handlers.dependencies import Injector, dependencies_of, new_provider
from millstream.worker.handlers.message import Message
from millstream.worker.handlers.middleware import Middleware
from millstream.worker.model.known_options import known_options
from millstream.worker.model.limit import Limit
from millstream.worker.model.retry import Retry

AckMode = Literal["auto", "manual", "each"]
OnAck = Literal["keep", "delete"]
ReadMode = Literal["both", "new", "claimed"]

#: Default idle milliseconds after which an entry may be claimed.
DEFAULT_MIN_IDLE = 30_000

#: Largest whole number of an option, as the server's commands allow.
_MOST = 2**53

#: Default largest number of entries in a batch.
DEFAULT_BATCH = 100

_START = re.compile(r"^(\$|\d+(-\d+)?)$")
_CONSUMER_WORKERS = "MILLSTREAM_WORKER"


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


@known_options
@dataclass(frozen=True, slots=True)
class StreamSub:
    """A stream that a subscriber reads as a member of a consumer group.

    Attributes:
        stream: key of the stream.
        group: name of the group; None takes the handler's name. A missing group is created with the stream, and again
            after FLUSHALL or XGROUP DESTROY. Name it before you go live, since a renamed handler creates a new group
            and runs the whole stream again. The log warns of that if the stream has entries, and says what to write.
        consumer: name of this process in the group. None makes a name for each process (host, process id, random part),
            removed at a clean stop. A given name stays; with several workers each adds its number to it.
        min_idle_time: idle milliseconds (or a text, ``"30s"``) after which another consumer may claim an entry; None
            takes 30,000. Entries that run or wait here are renewed at a third of it. So it is the time a crash goes
            unnoticed, not a limit for handlers. Only code that blocks the event loop for this long loses its entries.
        start: start of a new group: ``"0"`` reads all entries of the stream, ``"$"`` only later ones. With the default
            ``"0"``, entries published before the first start are not lost.
        max_records: number of entries read ahead of the running ones, and largest size of a batch. None adapts between
            ``concurrency`` and a hundred or more, by how quickly they are started; batches have at most a hundred.
        polling_interval: longest time for which a read blocks, in milliseconds or as a text.
        maxlen: approximate maximum length of the dead-letter stream; None keeps every dead letter.
        no_ack: True reads with XREADGROUP NOACK, so entries are never pending: each runs at most once, and a crash
            loses it.
    """

    stream: str = ""
    group: str | None = None
    consumer: str | None = None
    min_idle_time: int | str | None = None
    start: str = "0"
    max_records: int | None = None
    polling_interval: int | str = 2_000
    maxlen: int | None = None
    no_ack: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.stream, str):
            raise ConfigError(
                f"StreamSub({self.stream!r}) is invalid: it takes the name of one stream. Write one @app.subscriber "
                "for each stream, above the same function."
            )
        for name in ("group", "consumer", "start"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise ConfigError(f'StreamSub({name}={value!r}) is invalid: it must be a text. Write {name}="...".')
        for name in ("stream", "group", "consumer"):
            if not _is_utf8(getattr(self, name) or ""):
                raise ConfigError(f"StreamSub({name}={getattr(self, name)!r}) is invalid: it is not UTF-8.")
            if getattr(self, name) == "":
                raise ConfigError(f"StreamSub({name}='') is invalid: it is empty. Give it a name.")
        if not _START.match(self.start):
            raise ConfigError(f'StreamSub(start={self.start!r}) is invalid. Write "0", "$" or an entry id.')
        for name in ("min_idle_time", "max_records", "polling_interval", "maxlen"):
            value = getattr(self, name)
            if value is not None and name in ("min_idle_time", "polling_interval"):
                length = times.configured(f"StreamSub({name}=", value, "ms")
                if length < 1:
                    raise ConfigError(
                        f"StreamSub({name}={value!r}) is invalid: a number is milliseconds, and at least 1. "
                        f'If you mean seconds, write "{value:g}s".'
                        if not isinstance(value, str) and value > 0
                        else f"StreamSub({name}={value!r}) is invalid: it is shorter than a millisecond. "
                        'Write a longer time, such as "10s".'
                    )
                value = round(length)
                object.__setattr__(self, name, value)
            elif not isinstance(value, int | None) or isinstance(value, bool):
                raise ConfigError(f"StreamSub({name}={value!r}) is invalid: it is not a whole number. Write one.")
            if value is not None and not 1 <= value <= _MOST:
                raise ConfigError(f"StreamSub({name}={value!r}) is invalid: it is between 1 and {_MOST}.")
        if self.no_ack and self.min_idle_time is not None:
            raise ConfigError(
                "StreamSub(min_idle_time=) is invalid with no_ack=True: nothing is ever pending. Leave one out."
            )


@dataclass(slots=True)
class Subscription:
    """A handler bound to a stream; made by ``@app.subscriber``."""

    sub: StreamSub  # Stream and group
    handler: Callable[..., Any]  # Handler function
    retry: Retry = field(default_factory=Retry)  # Policy after a failure
    concurrency: int = 10  # Largest number of simultaneous runs in this process
    # ``"auto"`` acknowledges in batches when the handler returns; ``"each"`` also delays the next entry until the ack
    # is stored; ``"manual"`` leaves acks to the handler
    ack: AckMode = "auto"
    # ``"both"`` reads new entries and claims stale ones; ``"new"`` and ``"claimed"`` do only one of the two
    read: ReadMode = "both"
    dead: str = ""  # Key of the dead-letter stream
    name: str = ""  # Name of the handler
    middlewares: Sequence[Middleware] = ()  # Middlewares around each run, outermost first
    batch: bool = False  # The handler takes lists of entries, see :mod:`millstream.worker.subscriber.batching`
    # Name of a field, or a function of the message: entries with the same key run one after the other
    key: str | Callable[[Message], Hashable] | None = None
    hold: bool = False  # An entry begins only when all earlier entries of its key are handled or dead
    on_ack: OnAck = "keep"  # ``"delete"`` removes an acknowledged entry from the stream once no group needs it
    limits: Sequence[Limit] = ()  # Limits that apply to all workers together
    hard_limit: float | None = None  # Seconds after which the process ends if a handler without async is still running
    # Objects that the app provides for annotations, such as the app itself
    context: Mapping[type, Callable[[], Any]] = field(default_factory=dict)
    provider: Any = None  # Provider of dependencies (fast-depends), created on first use
    app: object = None  # App with this handler's publishers
    depends: frozenset[str] = field(init=False)  # Names of the handler's parameters that are dependencies
    binder: Binder = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.name or name_of(self.handler)
        check_handler(self.handler)
        self._check_options()
        self.dead = self.dead or f"{self.sub.stream}:dead"
        self.depends = dependencies_of(self.handler)
        self.binder = Binder(self.handler, skip=self.depends, context=tuple(self.context), batch=self.batch)
        if self.depends:
            self._check_dependencies()
        if self.batch and not self.binder.annotations:
            raise ConfigError(
                f"{self.name}: the batch handler has no parameter for its entries. Add one, such as list[dict]."
            )
        self.is_async = is_async(self.handler)
        if self.hard_limit is not None:
            self._check_hard_limit(self.hard_limit)

    def _check_options(self) -> None:
        if not isinstance(self.concurrency, int) or self.concurrency < 1:
            raise ConfigError(f"{self.name}: subscriber(concurrency={self.concurrency!r}) is invalid. Write 1 or more.")
        require(f"{self.name}: subscriber", "hold", self.hold, isinstance(self.hold, bool), "True or False")
        if not isinstance(self.retry, Retry):
            raise ConfigError(
                f"{self.name}: subscriber(retry={self.retry!r}) is invalid. Write Retry(max_deliveries=5)."
            )
        if not isinstance(self.dead, str):
            raise ConfigError(f"{self.name}: subscriber(dead={self.dead!r}) is invalid: it is the name of a stream.")
        if self.dead == self.sub.stream:
            raise ConfigError(
                f"{self.name}: subscriber(dead={self.dead!r}) is invalid: the handler would read its own dead letters. "
                "Name another stream."
            )
        self._check_key(self.key)
        for option, value, allowed in (
            ("ack", self.ack, ("auto", "manual", "each")),
            ("read", self.read, ("both", "new", "claimed")),
            ("on_ack", self.on_ack, ("keep", "delete")),
        ):
            if value not in allowed:
                raise ConfigError(f"subscriber({option}={value!r}) is invalid. Write one of {', '.join(allowed)}.")
        if self.sub.no_ack and (self.ack != "auto" or self.read == "claimed"):
            raise ConfigError(
                "StreamSub(no_ack=True) is invalid here: it leaves nothing to ack or to claim. Leave it out."
            )
        if self.batch and self.key is not None:
            raise ConfigError(
                "subscriber(batch=True, key=...) is invalid: a batch has entries of many keys. Leave one out."
            )
        if self.hold and (self.batch or self.ack == "manual"):
            raise ConfigError(
                f'{self.name}: subscriber(hold=True) is invalid with batch=True and ack="manual": each entry\'s end '
                "lets the next one begin. Omit one of them."
            )
        if self.sub.no_ack and self.on_ack == "delete":
            raise ConfigError(
                'on_ack="delete" is invalid with StreamSub(no_ack=True), which never acks. Leave one out.'
            )
        if self.limits:
            self._check_limits()

    def _check_hard_limit(self, seconds: float) -> None:
        where = f"{self.name}: subscriber(hard_limit={seconds:g}) is invalid"
        if seconds <= 0:
            raise ConfigError(f'{where}: it is a time above zero. Write hard_limit="10m".')
        if self.is_async:
            raise ConfigError(
                f"{where}: an async handler can be cancelled, so its process need not end. Write "
                "middlewares=[Timeout(...)]."
            )
        if self.sub.no_ack:
            raise ConfigError(
                f"{where} with StreamSub(no_ack=True): the entry could not be delivered again. Take one of both away."
            )

    def _check_limits(self) -> None:
        """Refuse limits that conflict with the other options."""
        names = []
        for one in self.limits:
            if not isinstance(one, Limit):
                raise ConfigError(f'{self.name}: subscriber(limit={one!r}) is invalid. Write limit=Limit("100/s").')
            where = f"{self.name}: subscriber(limit=Limit({'key=...' if one.key is not None else 'running=...'}))"
            if one.key is not None:
                self._check_key(one.key, "limit=Limit(key")
            per_run = one.key is not None or one.running is not None
            if per_run and self.batch:
                raise ConfigError(
                    f'{where} is invalid with batch=True: a batch is one run of many entries. Write Limit("100/s") '
                    "without key= and running=, or take batch=True away."
                )
            if per_run and self.sub.no_ack:
                raise ConfigError(
                    f"{where} is invalid with StreamSub(no_ack=True): its entries cannot go back to the server. Write "
                    'Limit("100/s") without key= and running=, or take no_ack=True away.'
                )
            if one.key is not None and self.key is not None:
                raise ConfigError(
                    f"{where} is invalid with subscriber(key=...): an entry that is put aside would lose its place. "
                    "Write a limit without key=, or take the subscriber's key= away."
                )
            if not is_name(one.name or self.name):
                raise ConfigError(
                    f"{self.name}: subscriber(limit=) is invalid: the handler's name cannot name a limit. Write "
                    'Limit(..., name="...").'
                )
            names.append(one.name or self.name)
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise ConfigError(
                f"{self.name}: subscriber(limit=[...]) is invalid: two limits are named {double!r}. Write "
                'Limit(..., name="...") for each.'
            )

    def _check_key(self, key: Any, option: str = "key") -> None:
        if key is None or (isinstance(key, str) and key):
            return
        where, end = f"subscriber({option}", ")" * (1 + option.count("("))
        if not callable(key):
            example = "lambda msg: (msg.fields['a'], msg.fields['b'])"
            raise ConfigError(
                f"{self.name}: {where}={key!r}{end} is invalid: a key is a field's name, or a function of the "
                f'message. Write key="field", or for several fields key={example}.'
            )
        if is_async(key) or inspect.isgeneratorfunction(annotated(key)):
            raise ConfigError(
                f"{self.name}: {where}={name_of(key)}{end} is invalid: a key's function is neither async nor a "
                "generator, since entries are put in order before they run. Write a plain function of the message."
            )
        if isinstance(key, type) or inspect.ismethoddescriptor(key) or not takes(key, 1):
            raise ConfigError(
                f"{self.name}: {where}={name_of(key)}{end} is invalid: it does not take a message. Write a "
                "function of one argument, such as lambda msg: msg.fields['customer']."
            )

    def shares(self, other: "Subscription") -> bool:
        """Report whether two subscribers take entries from each other by mistake."""
        meant = "claimed" in (self.read, other.read) or None not in (self.sub.consumer, other.sub.consumer)
        return (self.sub.stream, self.group) == (other.sub.stream, other.group) and not meant

    @property
    def publishers(self) -> Sequence[Any]:
        """The app's publishers for this handler; ``@app.publisher`` may be applied before or after."""
        return publishers_of(self.handler, self.app)

    @property
    def batch_size(self) -> int:
        """Maximum number of entries in one batch."""
        return self.sub.max_records or DEFAULT_BATCH

    def _check_dependencies(self) -> None:
        if self.provider is None:
            self.provider = new_provider()
        injector = Injector(self.handler, self.provider, tuple(self.context))
        if self.batch and injector.wants_entry:
            raise ConfigError(
                f"{self.name}: a dependency of a batch handler cannot have fields of an entry. Remove these."
            )

    @property
    def group(self) -> str:
        """The group's name."""
        return self.sub.group or self.name

    @property
    def min_idle(self) -> int:
        """Idle milliseconds after which entries may be claimed."""
        return int(self.sub.min_idle_time or DEFAULT_MIN_IDLE)

    @property
    def polling_interval(self) -> int:
        """Longest time for which one read blocks, in milliseconds."""
        return int(self.sub.polling_interval)

    @property
    def claims(self) -> bool:
        """True if this subscriber claims stale entries."""
        return self.read != "new" and not self.sub.no_ack

    def consumer(self) -> tuple[str, bool]:
        """Return this consumer's name in the group, and whether the name was made for this process only."""
        if self.sub.consumer is None:
            return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}", True
        number = os.environ.get(_CONSUMER_WORKERS)
        return (f"{self.sub.consumer}-{number}" if number else self.sub.consumer), False
