"""Spans and metrics of OpenTelemetry around runs and publishes, as its messaging conventions ask. Extra: ``otel``.

Attributes: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/; the metrics:
:mod:`millstream.worker.middlewares.otel_metrics`.

The context travels in the headers of the entry's envelope. An entry of plain fields has none: its run is the root of
a trace of its own, and a publish of plain fields stays one, untouched.
"""

from collections.abc import Sequence
from typing import Any

from millstream.errors import ConfigError
from millstream.worker.handlers.message import Message, Nack, PayloadError, Reject
from millstream.worker.handlers.middleware import Middleware, Publication, Publish, Run, RunBatch

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

    from millstream.worker.middlewares.otel_metrics import SYSTEM, Instruments
except ImportError as missing:
    raise ConfigError("tracing needs OpenTelemetry: install millstream[otel]") from missing


class Tracing(Middleware):
    """A consumer span for each run, a producer span for each publish, and the metrics of both.

    Args:
        provider: where spans go; the process's own provider when None.
        meter_provider: the same for metrics.
    """

    def __init__(
        self,
        provider: "trace.TracerProvider | None" = None,
        meter_provider: "metrics.MeterProvider | None" = None,
    ) -> None:
        self._tracer = trace.get_tracer("millstream", tracer_provider=provider)
        self._instruments = Instruments(meter_provider)

    async def run(self, call_next: Run, msg: Message) -> Any:
        """``process <stream>``, child of the span that published the entry if its headers tell."""
        with (
            self._tracer.start_as_current_span(
                f"process {msg.stream}",
                context=_context(msg),
                kind=SpanKind.CONSUMER,
                attributes={
                    **_place(msg.stream, "process"),
                    "messaging.consumer.group.name": msg.group,
                    "messaging.client.id": msg.consumer,
                    "messaging.message.id": msg.id,
                    "messaging.message.delivery_attempt": msg.delivery_count,
                },
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            self._instruments.processing(msg.stream, msg.group, 1),
        ):
            return await _told(span, call_next(msg))

    async def run_batch(self, call_next: RunBatch, msgs: Sequence[Message]) -> Any:
        """One span for the batch, linked to the spans that published its entries."""
        spans = [trace.get_current_span(_context(msg)).get_span_context() for msg in msgs]
        with (
            self._tracer.start_as_current_span(
                f"process {msgs[0].stream}",
                kind=SpanKind.CONSUMER,
                links=[Link(one) for one in spans if one.is_valid],
                attributes={
                    **_place(msgs[0].stream, "process"),
                    "messaging.consumer.group.name": msgs[0].group,
                    "messaging.client.id": msgs[0].consumer,
                    "messaging.batch.message_count": len(msgs),
                },
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            self._instruments.processing(msgs[0].stream, msgs[0].group, len(msgs)),
        ):
            return await _told(span, call_next(msgs))

    async def publish(self, call_next: Publish, publication: Publication) -> str:
        """``send <stream>``; the context is put into the headers, if the entry has any."""
        with self._tracer.start_as_current_span(
            f"send {publication.stream}", kind=SpanKind.PRODUCER, attributes=_place(publication.stream, "send")
        ) as span:
            if publication.headers is not None:
                inject(publication.headers)
            with self._instruments.sending(publication.stream):
                entry = await call_next(publication)
            span.set_attribute("messaging.message.id", entry)
            return entry


def _context(msg: Message) -> Context:
    """The context that travelled with an entry; none where its envelope is damaged, which is the handler's affair."""
    try:
        return extract(msg.headers)
    except PayloadError:
        return Context()


def _place(stream: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": stream,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


async def _told(span: "trace.Span", work: Any) -> Any:
    """Await the run; what it raised is recorded on the span, a Nack or Reject as an attribute and not as a fault."""
    try:
        return await work
    except (Nack, Reject) as said:
        span.set_attribute("millstream.outcome", type(said).__name__.lower())
        raise
    except Exception as error:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
        raise
