"""Spans and metrics of OpenTelemetry around runs and publishes, as its messaging conventions ask. Extra: ``otel``.

One entry's way has these spans: ``send`` where it is published; ``receive`` where a worker reads it (one for each read,
linked to all sends); ``process`` for a run, the child of its send and linked to its receive. Below ``process`` is
``ack``, ``nack`` or ``dead``, which ends when the server has it. A run of an entry that failed here before is linked to
that run.

Attributes: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/; the metrics:
:mod:`millstream.worker.middlewares.otel_metrics`.

The context travels in the headers of the entry's envelope. Other programs may have put it into fields ``traceparent``
and ``tracestate`` of a plain entry, which is read too. A plain entry with neither is the root of a trace of its own,
and a publish of plain fields stays one, untouched, unless ``envelope`` says otherwise.
"""

import contextlib
import functools
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from millstream.client.url import SENTINELS
from millstream.errors import ConfigError
from millstream.worker.handlers.message import EntryLostError, Message, Settled
from millstream.worker.handlers.middleware import Middleware, Publication, Publish, Run, RunBatch
from millstream.worker.model.answers import Nack, PayloadError, Reject, answer

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

    from millstream.worker.middlewares.otel_metrics import Instruments, place
except ImportError as missing:
    raise ConfigError("tracing needs OpenTelemetry. Run pip install 'millstream[otel]'.") from missing

#: Entries whose earlier spans are kept to be linked to: more than a worker ever has in hand or waiting.
_REMEMBERED = 10_000
_PORT = 6379  # where a URL names none
#: Fields in which other programs put the context of a plain entry.
_PLAIN = ("traceparent", "tracestate")


class Tracing(Middleware):
    """Spans for what becomes of each entry, a producer span for each publish, and the metrics of both.

    Args:
        provider: the target of spans; the process's own provider when None.
        meter_provider: the same for metrics.
        envelope: write entries that are published without headers in FastStream's envelope as well, so that each
            carries its context. Readers that do not know the envelope see one field ``__data__`` then.
    """

    def __init__(
        self,
        provider: "trace.TracerProvider | None" = None,
        meter_provider: "metrics.MeterProvider | None" = None,
        *,
        envelope: bool = False,
    ) -> None:
        self._tracer = _ServerTracer(trace.get_tracer("millstream", tracer_provider=provider))
        self._instruments = Instruments(meter_provider)
        self._envelope = envelope
        self._earlier = _EarlierSpans()

    def connects(self, url: str) -> None:
        """Spans say which server it is."""
        self._tracer.server = server_of(url)

    def received(self, msgs: Sequence[Message], began_ns: int) -> None:
        """``receive <stream>``, for the read that brought these, linked to the spans that published them."""
        first = msgs[0]
        claimed = sum(msg.delivery_count > 1 for msg in msgs)
        span = self._tracer.start_span(
            f"receive {first.stream}",
            context=Context(),  # whatever task reads, it is nobody's part
            kind=SpanKind.CLIENT,
            attributes={
                **_consumer(first, "receive"),
                "messaging.batch.message_count": len(msgs),
                **({"millstream.claimed_count": claimed} if claimed else {}),
            },
            links=_links(msgs),
            start_time=began_ns,
        )
        span.end()
        for msg in msgs:
            self._earlier.add(msg, span.get_span_context())
            msg.when_settled(functools.partial(self._unrun, msg))

    def _unrun(self, msg: Message, outcome: Settled) -> None:
        """A span for an entry that was given up without a run, below the span that published it."""
        read = self._earlier.take(msg)  # none where it was run
        if read and outcome == "dead":
            attributes = {**_consumer(msg, "dead", "settle"), "messaging.message.id": msg.id}
            links, context = [Link(one) for one in read], _context(msg)
            name, kind = f"dead {msg.stream}", SpanKind.CLIENT
            self._tracer.start_span(name, context=context, kind=kind, attributes=attributes, links=links).end()

    async def run(self, call_next: Run, msg: Message) -> Any:
        """``process <stream>``, child of the span that published the entry if its headers tell."""
        known = {"messaging.message.id": msg.id, "messaging.message.delivery_attempt": msg.delivery_count}
        links = [Link(one) for one in self._earlier.take(msg)]
        with self._processing([msg], known, context=_context(msg), links=links):
            return await call_next(msg)

    async def run_batch(self, call_next: RunBatch, msgs: Sequence[Message]) -> Any:
        """One span for the batch, linked to the spans that published its entries."""
        links = [*_links(msgs), *_once(one for msg in msgs for one in self._earlier.take(msg))]
        known = {"messaging.batch.message_count": len(msgs)}
        with self._processing(msgs, known, context=Context(), links=links):
            return await call_next(msgs)

    @contextlib.contextmanager
    def _processing(self, msgs: Sequence[Message], known: Mapping[str, Any], **options: Any) -> Iterator[None]:
        """The span and the metrics of one run; what it raised is recorded, a Nack or Reject not as a fault."""
        first = msgs[0]
        with (
            self._tracer.start_as_current_span(
                f"process {first.stream}",
                kind=SpanKind.CONSUMER,
                attributes={**_consumer(first, "process"), **known},
                record_exception=False,
                set_status_on_exception=False,
                **options,
            ) as span,
            self._instruments.processing(first.stream, first.group, len(msgs)),
        ):
            settling = _Settling(self._tracer, span, self._earlier)
            for msg in msgs:
                settling.watch(msg)
            try:
                yield
            except Exception as error:
                said = answer(error)
                if isinstance(said, Nack | Reject):
                    span.set_attribute("millstream.outcome", type(said).__name__.lower())
                    raise
                # here and not by the span's own means, which would take a Nack for a fault as well
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise
            finally:
                settling.decided_ns = time.time_ns()

    async def publish(self, call_next: Publish, publication: Publication) -> str:
        """``send <stream>``; the context is put into the headers, if the entry has any.

        An entry of plain fields stays one, unless ``envelope`` was given: to put it into an envelope changes what other
        readers get.
        """
        with self._tracer.start_as_current_span(
            f"send {publication.stream}", kind=SpanKind.PRODUCER, attributes=_place(publication.stream, "send", "send")
        ) as span:
            if publication.headers is None and self._envelope:
                publication.headers = {}
            if publication.headers is not None:
                inject(publication.headers)
            with self._instruments.sending(publication.stream):
                entry = await call_next(publication)
            span.set_attribute("messaging.message.id", entry)
            return entry


class _ServerTracer:
    """Makes spans that say which server they are about."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self.server: Mapping[str, str | int] = {}  # Attributes of the server

    def start_span(self, name: str, *, attributes: Mapping[str, Any], **options: Any) -> Span:
        """As a tracer does."""
        return self._tracer.start_span(name, attributes={**self.server, **attributes}, **options)

    def start_as_current_span(
        self, name: str, *, attributes: Mapping[str, Any], **options: Any
    ) -> contextlib.AbstractContextManager[Span]:
        """As a tracer does."""
        return self._tracer.start_as_current_span(name, attributes={**self.server, **attributes}, **options)


class _EarlierSpans:
    """Spans of entries before their next run: their latest reads and failed runs in this process."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, str, str], list[SpanContext]] = OrderedDict()

    def add(self, msg: Message, span: SpanContext) -> None:
        """A read brought it, or a run of it failed; of several, the last two are kept."""
        spans = self._found.setdefault((msg.stream, msg.group, msg.id), [])
        self._found.move_to_end((msg.stream, msg.group, msg.id))
        spans[:] = [*spans[-1:], span]
        if len(self._found) > _REMEMBERED:
            self._found.popitem(last=False)

    def take(self, msg: Message) -> list[SpanContext]:
        """All of an entry, which are then forgotten."""
        return self._found.pop((msg.stream, msg.group, msg.id), [])


class _Settling:
    """The spans of what becomes of one run's entries: one for each kind of outcome, when all have theirs."""

    def __init__(self, tracer: _ServerTracer, run: Span, earlier: _EarlierSpans) -> None:
        self._tracer = tracer
        self._run = run
        self._earlier = earlier
        self._open = 0
        self._settled: dict[Settled, list[Message]] = {}
        self.decided_ns: int | None = None  # Wall nanoseconds at which the run ended; None until then

    def watch(self, msg: Message) -> None:
        """Wait for what becomes of an entry."""
        self._open += 1
        msg.when_settled(lambda outcome: self._heard(msg, outcome))

    def _heard(self, msg: Message, outcome: Settled) -> None:
        self._open -= 1
        self._settled.setdefault(outcome, []).append(msg)
        if outcome == "nack":
            self._earlier.add(msg, self._run.get_span_context())
        if self._open == 0:
            for each, msgs in self._settled.items():
                self._tell(each, msgs)

    def _tell(self, outcome: Settled, msgs: Sequence[Message]) -> None:
        name = "settle" if outcome == "lost" else outcome
        now = time.time_ns()
        span = self._tracer.start_span(
            f"{name} {msgs[0].stream}",
            context=trace.set_span_in_context(self._run, Context()),
            kind=SpanKind.CLIENT,
            attributes={
                **_consumer(msgs[0], name, "settle"),
                **(
                    {"messaging.message.id": msgs[0].id}
                    if len(msgs) == 1
                    else {"messaging.batch.message_count": len(msgs)}
                ),
            },
            start_time=min(self.decided_ns or now, now),  # settled by hand, the run may still go on
        )
        if outcome == "lost":
            span.set_attribute("error.type", EntryLostError.__qualname__)
            span.set_status(Status(StatusCode.ERROR, "another consumer has the entry, or it was removed"))
        span.end()


def _links(msgs: Sequence[Message]) -> list[Link]:
    """To the spans that published the entries."""
    return _once(trace.get_current_span(_context(msg)).get_span_context() for msg in msgs)


def _once(spans: Iterable[SpanContext]) -> list[Link]:
    """A link to each span; one read, and a batch's run that failed, is that of many entries."""
    found = {(one.trace_id, one.span_id): one for one in spans if one.is_valid}
    return [Link(one) for one in found.values()]


def server_of(url: str) -> dict[str, str | int]:
    """The conventions' attributes of a server; none where it has no address, as in process, or its URL names others.

    For a cluster it is the node that the URL names first; with Sentinels, only they know it.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return {"server.address": parts.path}
    if url.startswith(SENTINELS) or parts.scheme in {"memory", "file"}:
        return {}
    place = urlsplit(f"//{parts.netloc.rpartition('@')[2].partition(',')[0]}")
    return {"server.address": place.hostname or "localhost", "server.port": place.port or _PORT}


def _context(msg: Message) -> Context:
    """The context that travelled with an entry; none where its envelope is damaged, which is the handler's affair."""
    try:
        carrier = msg.headers
    except PayloadError:
        return Context()
    # propagators do not take surrogates, and such bytes are not a context
    plain = {name: msg.fields[name].decode("latin-1") for name in _PLAIN if name in msg.fields}
    return extract(carrier or plain, Context())


def _consumer(msg: Message, operation: str, kind: str | None = None) -> dict[str, str]:
    """Attributes common to all spans on the consumer's side."""
    return {
        **_place(msg.stream, operation, kind or operation),
        "messaging.consumer.group.name": msg.group,
        "messaging.client.id": msg.consumer,
    }


def _place(stream: str, operation: str, kind: str) -> dict[str, str]:
    """The attributes that the conventions want of every span: those of the metrics, and the type of the operation."""
    return {**place(stream, operation), "messaging.operation.type": kind}
