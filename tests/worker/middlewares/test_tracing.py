"""Spans and metrics of a publish and its run, recorded by OpenTelemetry's own SDK."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from millstream import App, Message, Nack, Reject, Retry, StreamSub
from millstream.worker.middlewares.tracing import Tracing, server_of
from millstream.worker.model.answers import PayloadError
from support.groups import all_done
from support.servers import ServerProcess
from support.waiting import aeventually


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


Spans = Sequence[ReadableSpan]


def of(exporter: InMemorySpanExporter, *operations: str) -> Spans:
    """Return finished spans with one of the given name prefixes, in the order of their ends."""
    return [span for span in exporter.get_finished_spans() if span.name.partition(" ")[0] in operations]


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider)


@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
async def test_what_a_handler_returns_is_published_within_its_run(
    server: ServerProcess, tracing: Tracing, exporter: InMemorySpanExporter, batch: bool
) -> None:
    """The publish of a handler's result is a child span of the handler's run."""
    app = App(server.url, middlewares=[tracing], registry=False)
    sub = StreamSub("s", group="g")

    if batch:

        @app.publisher("out", headers={})
        @app.subscriber(sub, batch=True)
        async def handle(x: list[int]) -> list[dict[str, int]]:
            return [{"x": one} for one in x]
    else:

        @app.publisher("out", headers={})
        @app.subscriber(sub)
        async def handle(x: int) -> dict[str, int]:
            return {"x": x}

    async with app.running():
        await app.publish("s", {"x": 1}, headers={})
        await aeventually(lambda: len(of(exporter, "send", "process")) == 3)
    first, second, process = of(exporter, "send", "process")
    send = second if second.name == "send out" else first
    assert (send.name, process.name) == ("send out", "process s")
    assert send.parent is not None
    assert (send.parent.span_id, send.context.trace_id) == (process.context.span_id, process.context.trace_id)


async def test_a_run_is_the_child_of_its_publish_through_the_envelope(
    server: ServerProcess, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """A run is a child span of its publish through the envelope's headers.

    Attributes follow the messaging conventions.
    """
    app, seen = App(server.url, middlewares=[tracing]), []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int, msg: Message) -> None:
        seen.append(msg.headers)

    async with app.running():
        entry = await app.publish("s", {"x": 1}, headers={})
        await aeventually(lambda: len(of(exporter, "send", "process")) == 2)
    send, process = of(exporter, "send", "process")
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
    place = urlsplit(server.url)
    for span in exporter.get_finished_spans():
        known = dict(span.attributes or {})
        assert (known["server.address"], known["server.port"]) == (place.hostname, place.port), span.name


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("redis://u:p%40@host:7000/1", ("host", 7000)),
        ("rediss://[::1]/0", ("::1", 6379)),
        ("redis:///0", ("localhost", 6379)),
        ("redis+cluster://one:7001,two:7002", ("one", 7001)),
        ("unix:///run/m.sock?db=1", ("/run/m.sock", None)),
        ("redis+sentinel://s:26379/main", (None, None)),
        ("memory://", (None, None)),
    ],
)
def test_a_span_names_the_server_without_secrets(url: str, known: tuple[str | None, int | None]) -> None:
    """A span names the server by host and port, or by socket path, without any password."""
    found = server_of(url)
    assert (found.get("server.address"), found.get("server.port")) == known


async def test_spans_of_two_traces_are_two_although_their_ids_are_one(
    server: ServerProcess, client: redis.Redis, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """A read of entries from two traces is linked once to each, even if both spans have the same id."""
    for trace in ("1", "2", "1"):
        client.xadd("s", {"x": "1", "traceparent": f"00-{trace * 32}-{'7' * 16}-01"})
    app = App(server.url, middlewares=[tracing])

    @app.subscriber(StreamSub("s", group="g"), batch=True)
    async def handle(x: list[int]) -> None:
        pass

    async with app.running():
        await aeventually(lambda: of(exporter, "receive"))
    receive = of(exporter, "receive")[0]
    assert sorted(f"{link.context.trace_id:x}"[0] for link in receive.links) == ["1", "2"]


async def test_plain_entries_stay_plain_and_failures_are_told(
    server: ServerProcess, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """Tracing adds no header to an entry of plain fields.

    An error sets the span's status, and a Nack only an attribute.
    """
    app, fields = App(server.url, middlewares=[tracing]), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=Retry(max_deliveries=2, base=0.01))
    async def handle(msg: Message) -> None:
        fields.append(msg.fields)
        raise Nack if msg.delivery_count == 1 else ValueError("bad")

    async with app.running():
        await app.publish("s", {"x": 1})
        await aeventually(lambda: len(of(exporter, "process")) == 2)
    first, second = of(exporter, "process")
    assert fields == [{"x": b"1"}] * 2
    assert first.attributes is not None
    assert (first.status.status_code, first.attributes["millstream.outcome"]) == (StatusCode.UNSET, "nack")
    assert second.attributes is not None
    assert (second.status.status_code, second.attributes["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert [event.name for event in second.events] == ["exception"]


async def test_a_batch_is_linked_to_what_published_its_entries(
    server: ServerProcess, tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """A batch has one span with a link for each entry that carries a context."""
    app = App(server.url, middlewares=[tracing])

    @app.subscriber(StreamSub("s", group="g"), batch=True, concurrency=1)
    async def handle(xs: list[int]) -> None: ...

    await app.publish_batch("s", [{"x": 1}, {"x": 2}], headers={})
    await app.publish("s", {"x": 3})
    async with app.running():
        await aeventually(lambda: len(of(exporter, "process")) == 1)
    *sends, receive, batch = of(exporter, "send", "receive", "process")
    links = {span.context.span_id for span in (*sends[:2], receive)}
    assert {link.context.span_id for link in batch.links} == links
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 3


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


def measured(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """Return a mapping from each instrument to its attributes and data point, in order of first use."""
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [one for found in data.resource_metrics for scope in found.scope_metrics for one in scope.metrics]
    return {one.name: [(dict(point.attributes or {}), point) for point in one.data.data_points] for one in metrics}


SENT = {"messaging.system": "redis", "messaging.destination.name": "s", "messaging.operation.name": "send"}
PROCESSED = {**SENT, "messaging.operation.name": "process", "messaging.consumer.group.name": "g"}


async def test_runs_are_measured_by_how_they_ended(
    server: ServerProcess, client: redis.Redis, reader: InMemoryMetricReader
) -> None:
    """Each delivery is counted and each run measured in the conventions' buckets. A Reject is not an error."""
    app = App(server.url, middlewares=[Tracing(meter_provider=MeterProvider([reader]))])

    @app.subscriber(StreamSub("s", group="g"), retry=Retry(max_deliveries=1), concurrency=1)
    async def handle(x: int) -> None:
        if x == 1:
            raise Reject("unlucky")
        if x == 2:
            raise ValueError("bad")

    async with app.running():
        await app.publish_batch("s", [{"x": x} for x in (0, 1, 2, 3)])
        await aeventually(all_done(client, "s", "g"))
    found = measured(reader)
    assert [(attributes, point.value) for attributes, point in found["messaging.client.consumed.messages"]] == [
        (PROCESSED, 4)
    ]
    runs = found["messaging.process.duration"]
    assert [(attributes, point.count) for attributes, point in runs] == [
        (PROCESSED, 2),
        ({**PROCESSED, "millstream.outcome": "reject"}, 1),
        ({**PROCESSED, "error.type": "ValueError"}, 1),
    ]
    assert runs[0][1].sum > 0
    assert (runs[0][1].explicit_bounds[0], runs[0][1].explicit_bounds[-1]) == (0.005, 10)


async def test_publishes_are_measured_and_counted_if_they_were_sent(
    server: ServerProcess, client: redis.Redis, reader: InMemoryMetricReader
) -> None:
    """A publish that the server refused is counted as sent. Content that makes no entry is not counted."""
    app = App(server.url, middlewares=[Tracing(meter_provider=MeterProvider([reader]))])
    client.set("taken", "no stream")
    async with app:
        await app.publish("s", {"x": 1})
        with pytest.raises(redis.ResponseError):
            await app.publish("taken", {"x": 1})
        with pytest.raises(PayloadError):
            await app.publish("s", {})
    found = measured(reader)
    refused = {**SENT, "messaging.destination.name": "taken", "error.type": "ResponseError"}
    assert [(attributes, point.value) for attributes, point in found["messaging.client.sent.messages"]] == [
        (SENT, 1),
        (refused, 1),
    ]
    times = [(attributes, point.count) for attributes, point in found["messaging.client.operation.duration"]]
    kind = {"messaging.operation.type": "send"}
    assert times == [
        ({**SENT, **kind}, 1),
        ({**refused, **kind}, 1),
        ({**SENT, **kind, "error.type": "PayloadError"}, 1),
    ]


async def test_a_batch_is_one_run_of_many_messages(
    server: ServerProcess, client: redis.Redis, reader: InMemoryMetricReader
) -> None:
    """In metrics, a batch counts each entry as a message, and its time as one run."""
    app = App(server.url, middlewares=[Tracing(meter_provider=MeterProvider([reader]))])

    @app.subscriber(StreamSub("s", group="g"), batch=True, concurrency=1)
    async def handle(xs: list[int]) -> None: ...

    await app.publish_batch("s", [{"x": x} for x in (1, 2, 3)])
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    found = measured(reader)
    assert [(attributes, point.value) for attributes, point in found["messaging.client.consumed.messages"]] == [
        (PROCESSED, 3)
    ]
    assert [(attributes, point.count) for attributes, point in found["messaging.process.duration"]] == [(PROCESSED, 1)]
