"""Spans of a publish and of the run it leads to, with OpenTelemetry's own SDK keeping them."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from millstream import App, Message, Nack, Retry, StreamSub
from millstream.worker.tracing import Tracing
from support.servers import ServerProcess
from support.waiting import aeventually


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider)


async def test_a_run_is_the_child_of_its_publish_through_the_envelope(
    server: ServerProcess, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """The context is in the headers; attributes are those of the messaging conventions."""
    app, seen = App(server.url, middlewares=[tracing]), []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int, msg: Message) -> None:
        seen.append(msg.headers)

    async with app.running():
        entry = await app.publish("s", {"x": 1}, headers={})
        await aeventually(lambda: len(exporter.get_finished_spans()) == 2)
    send, process = exporter.get_finished_spans()
    assert (send.name, send.kind, process.name, process.kind) == (
        "send s",
        SpanKind.PRODUCER,
        "process s",
        SpanKind.CONSUMER,
    )
    assert process.parent is not None
    assert process.parent.span_id == send.context.span_id
    assert "traceparent" in seen[0]
    assert process.attributes is not None
    assert send.attributes is not None
    assert send.attributes["messaging.message.id"] == entry
    assert {
        "messaging.system": "redis",
        "messaging.destination.name": "s",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "g",
        "messaging.message.id": entry,
        "messaging.message.delivery_attempt": 1,
    }.items() <= dict(process.attributes).items()


async def test_plain_entries_stay_plain_and_failures_are_told(
    server: ServerProcess, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """No header is put into an entry of plain fields; an error is a status, a Nack only an attribute."""
    app, fields = App(server.url, middlewares=[tracing]), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60), retry=Retry(max_deliveries=2, base=0.01))
    async def handle(msg: Message) -> None:
        fields.append(msg.fields)
        raise Nack if msg.delivery_count == 1 else ValueError("bad")

    async with app.running():
        await app.publish("s", {"x": 1})
        await aeventually(lambda: len(exporter.get_finished_spans()) == 3)
    _, first, second = exporter.get_finished_spans()
    assert fields == [{"x": b"1"}] * 2
    assert first.attributes is not None
    assert (first.status.status_code, first.attributes["millstream.outcome"]) == (StatusCode.UNSET, "nack")
    assert second.attributes is not None
    assert (second.status.status_code, second.attributes["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert [event.name for event in second.events] == ["exception"]


async def test_a_batch_is_linked_to_what_published_its_entries(
    server: ServerProcess, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """One span for the batch, as many links as entries with a context."""
    app = App(server.url, middlewares=[tracing])

    @app.subscriber(StreamSub("s", group="g"), batch=True, concurrency=1)
    async def handle(xs: list[int]) -> None: ...

    await app.publish_batch("s", [{"x": 1}, {"x": 2}], headers={})
    await app.publish("s", {"x": 3})
    async with app.running():
        await aeventually(lambda: len(exporter.get_finished_spans()) == 4)
    *sends, batch = exporter.get_finished_spans()
    assert {link.context.span_id for link in batch.links} == {span.context.span_id for span in sends[:2]}
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 3
