"""Spans and metrics of OpenTelemetry around runs and publishes, as its messaging conventions ask. Extra: ``otel``.

Attributes: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/; the metrics:
:mod:`millstream.worker.middlewares.otel_metrics`.

The context travels in the headers of the entry's envelope. An entry of plain fields has none: its run is the root of
a trace of its own, and a publish of plain fields stays one, untouched.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from millstream.errors import ConfigError
from millstream.worker.handlers.message import Message, Nack, PayloadError, Reject
from millstream.worker.handlers.middleware import Middleware, Publication, Publish, Run, RunBatch

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

    from millstream.worker.middlewares.otel_metrics import Instruments, place
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
        known = {"messaging.message.id": msg.id, "messaging.message.delivery_attempt": msg.delivery_count}
        with self._processing(msg, 1, known, context=_context(msg)):
            return await call_next(msg)

    async def run_batch(self, call_next: RunBatch, msgs: Sequence[Message]) -> Any:
        """One span for the batch, linked to the spans that published its entries."""
        spans = [trace.get_current_span(_context(msg)).get_span_context() for msg in msgs]
        links = [Link(one) for one in spans if one.is_valid]
        with self._processing(msgs[0], len(msgs), {"messaging.batch.message_count": len(msgs)}, links=links):
            return await call_next(msgs)

    @contextlib.contextmanager
    def _processing(self, first: Message, messages: int, known: Mapping[str, Any], **options: Any) -> Iterator[None]:
        """The span and the metrics of one run; what it raised is recorded, a Nack or Reject not as a fault.

        Args:
            first: of the messages; all have its stream, group and consumer.
            messages: how many the handler got.
            known: attributes of this kind of run.
            options: of the span.
        """
        with (
            self._tracer.start_as_current_span(
                f"process {first.stream}",
                kind=SpanKind.CONSUMER,
                attributes={
                    **_place(first.stream, "process"),
                    "messaging.consumer.group.name": first.group,
                    "messaging.client.id": first.consumer,
                    **known,
                },
                record_exception=False,
                set_status_on_exception=False,
                **options,
            ) as span,
            self._instruments.processing(first.stream, first.group, messages),
        ):
            try:
                yield
            except (Nack, Reject) as said:
                span.set_attribute("millstream.outcome", type(said).__name__.lower())
                raise
            except Exception as error:
                # here and not by the span's own means, which would take a Nack for a fault as well
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise

    async def publish(self, call_next: Publish, publication: Publication) -> str:
        """``send <stream>``; the context is put into the headers, if the entry has any.

        An entry of plain fields stays one: to put it into an envelope would change what other readers get.
        """
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
    """What the conventions want of every span: what the metrics have, and the type, which is the operation's name."""
    return {**place(stream, operation), "messaging.operation.type": operation}
