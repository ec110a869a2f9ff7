"""OpenTelemetry's spans and metrics around runs and publishes, as its messaging conventions specify. Extra: ``otel``.

An entry has these spans: ``send`` where it is published; ``receive`` where a worker reads it (one for each read, linked
to all sends); ``process`` for a run, as a child of its send and linked to its receive. Below ``process`` is ``ack``,
``nack`` or ``dead``, which ends when the server has stored the outcome. If a run of the entry failed in this process
before, the next run is linked to it.

Attributes: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/; the metrics:
:mod:`millstream.worker.middlewares.otel_metrics`.

The context travels in the headers of the entry's envelope. It is also read from the fields ``traceparent`` and
``tracestate`` of a plain entry, where other programs may put it. A plain entry without either field starts a new trace.
A publish of plain fields stays plain unless ``envelope`` is set.
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

#: Number of entries whose earlier spans are kept for links: more than a worker ever holds or delays.
_REMEMBERED = 10_000
_PORT = 6379  # Default port of a URL
#: Fields in which other programs store the context of a plain entry.
_PLAIN = ("traceparent", "tracestate")


class Tracing(Middleware):
    """Spans for the outcome of each entry, a producer span for each publish, and the metrics of both.

    Args:
        provider: the target of spans; None takes the process's own provider.
        meter_provider: the target of metrics; None takes the process's own provider.
        envelope: True also writes entries without headers in FastStream's envelope, so that each entry carries its
            context. Readers that do not support the envelope then see one field ``__data__``.
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
        """Note the server, for the attributes of spans."""
        self._tracer.server = server_of(url)

    def received(self, msgs: Sequence[Message], began_ns: int) -> None:
        """Make the span ``receive <stream>`` for a read, linked to the spans that published its entries."""
        first = msgs[0]
        claimed = sum(msg.delivery_count > 1 for msg in msgs)
        span = self._tracer.start_span(
            f"receive {first.stream}",
            context=Context(),  # a read is not part of any other span
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
        """Make a span for an entry that ended as dead without a run, below the span that published it."""
        read = self._earlier.take(msg)  # empty if the entry has run
        if read and outcome == "dead":
            attributes = {**_consumer(msg, "dead", "settle"), "messaging.message.id": msg.id}
            links, context = [Link(one) for one in read], _context(msg)
            name, kind = f"dead {msg.stream}", SpanKind.CLIENT
            self._tracer.start_span(name, context=context, kind=kind, attributes=attributes, links=links).end()

    async def run(self, call_next: Run, msg: Message) -> Any:
        """Run in the span ``process <stream>``, a child of the span that published the entry if its headers name it."""
        known = {"messaging.message.id": msg.id, "messaging.message.delivery_attempt": msg.delivery_count}
        links = [Link(one) for one in self._earlier.take(msg)]
        with self._processing([msg], known, context=_context(msg), links=links):
            return await call_next(msg)

    async def run_batch(self, call_next: RunBatch, msgs: Sequence[Message]) -> Any:
        """Run in one span for the batch, linked to the spans that published its entries."""
        links = [*_links(msgs), *_once(one for msg in msgs for one in self._earlier.take(msg))]
        known = {"messaging.batch.message_count": len(msgs)}
        with self._processing(msgs, known, context=Context(), links=links):
            return await call_next(msgs)

    @contextlib.contextmanager
    def _processing(self, msgs: Sequence[Message], known: Mapping[str, Any], **options: Any) -> Iterator[None]:
        """Make the span and the metrics of one run; an exception is recorded, but a Nack or Reject is not an error."""
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
                # Recorded here, since the span itself would also record a Nack as an error
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise
            finally:
                settling.decided_ns = time.time_ns()

    async def publish(self, call_next: Publish, publication: Publication) -> str:
        """Publish in the span ``send <stream>``, and put the context into the entry's headers, if it has any.

        Without ``envelope``, an entry of plain fields stays plain, since an envelope changes the content for other
        readers.
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
    """Makes spans with the attributes of the server."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self.server: Mapping[str, str | int] = {}  # Attributes of the server

    def start_span(self, name: str, *, attributes: Mapping[str, Any], **options: Any) -> Span:
        """Start a span as a tracer does, with the server's attributes."""
        return self._tracer.start_span(name, attributes={**self.server, **attributes}, **options)

    def start_as_current_span(
        self, name: str, *, attributes: Mapping[str, Any], **options: Any
    ) -> contextlib.AbstractContextManager[Span]:
        """Start a span as a tracer does, with the server's attributes."""
        return self._tracer.start_as_current_span(name, attributes={**self.server, **attributes}, **options)


class _EarlierSpans:
    """Spans of an entry before its next run: the latest reads and failed runs in this process."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, str, str], list[SpanContext]] = OrderedDict()

    def add(self, msg: Message, span: SpanContext) -> None:
        """Add the span of a read or of a failed run; the last two spans of an entry are kept."""
        spans = self._found.setdefault((msg.stream, msg.group, msg.id), [])
        self._found.move_to_end((msg.stream, msg.group, msg.id))
        spans[:] = [*spans[-1:], span]
        if len(self._found) > _REMEMBERED:
            self._found.popitem(last=False)

    def take(self, msg: Message) -> list[SpanContext]:
        """Remove and return all spans of an entry."""
        return self._found.pop((msg.stream, msg.group, msg.id), [])


class _Settling:
    """Makes spans for the outcomes of one run's entries: one span for each kind of outcome, once all are known."""

    def __init__(self, tracer: _ServerTracer, run: Span, earlier: _EarlierSpans) -> None:
        self._tracer = tracer
        self._run = run
        self._earlier = earlier
        self._open = 0
        self._settled: dict[Settled, list[Message]] = {}
        self.decided_ns: int | None = None  # Wall nanoseconds at the end of the run; None before that

    def watch(self, msg: Message) -> None:
        """Wait for the outcome of an entry."""
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
            start_time=min(self.decided_ns or now, now),  # with a manual ack, the run may still continue
        )
        if outcome == "lost":
            span.set_attribute("error.type", EntryLostError.__qualname__)
            span.set_status(Status(StatusCode.ERROR, "another consumer has the entry, or it was removed"))
        span.end()


def _links(msgs: Sequence[Message]) -> list[Link]:
    """Return links to the spans that published the entries."""
    return _once(trace.get_current_span(_context(msg)).get_span_context() for msg in msgs)


def _once(spans: Iterable[SpanContext]) -> list[Link]:
    """Return one link to each span; entries of one read or one failed batch share a span."""
    found = {(one.trace_id, one.span_id): one for one in spans if one.is_valid}
    return [Link(one) for one in found.values()]


def server_of(url: str) -> dict[str, str | int]:
    """Return the conventions' attributes of a server; empty if it has no address, as in process or with Sentinels.

    For a cluster, the attributes describe the first node in the URL.
    """
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return {"server.address": parts.path}
    if url.startswith(SENTINELS) or parts.scheme in {"memory", "file"}:
        return {}
    place = urlsplit(f"//{parts.netloc.rpartition('@')[2].partition(',')[0]}")
    return {"server.address": place.hostname or "localhost", "server.port": place.port or _PORT}


def _context(msg: Message) -> Context:
    """Return the context that an entry carries; empty if its envelope is damaged, which its run reports."""
    try:
        carrier = msg.headers
    except PayloadError:
        return Context()
    # Propagators do not accept surrogates, and such bytes are not a context
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
    """Return the attributes that the conventions require for every span, including the type of the operation."""
    return {**place(stream, operation), "messaging.operation.type": kind}
