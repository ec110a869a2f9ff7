"""One trace from the publish to the acknowledgement, over processes, retries and claims, on both servers."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from millstream import App, BatchError, Message, Middleware, Nack, Reject, Retry, StreamSub
from millstream.worker.middlewares.tracing import Tracing
from support.groups import all_done, pending
from support.servers import ServerProcess
from support.waiting import aeventually

PUBLISHER = """
import asyncio, json, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from millstream import App
from millstream.worker.middlewares.tracing import Tracing

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

async def main():
    async with App(sys.argv[1], middlewares=[Tracing(provider, envelope=True)]) as app:
        await app.publish("s", {"x": 1})

asyncio.run(main())
(span,) = exporter.get_finished_spans()
print(json.dumps({"name": span.name, "trace": span.context.trace_id, "span": span.context.span_id}))
"""


def published(url: str) -> str:
    """Return the span that a process reports for publishing one entry."""
    words = [sys.executable, "-c", PUBLISHER, url]
    return subprocess.run(words, env=os.environ, capture_output=True, text=True, check=True).stdout


class Traced:
    """A Tracing with the spans that it recorded."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.middleware = Tracing(provider, **options)

    def of(self, operation: str) -> Sequence[ReadableSpan]:
        """Return the finished spans with a name, in the order of their ends."""
        return [span for span in self.exporter.get_finished_spans() if span.name.partition(" ")[0] == operation]


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def ident(span: ReadableSpan) -> int:
    return int(span.context.span_id)


def under(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_a_trace_goes_from_one_process_to_another(server: ServerProcess, client: redis.Redis) -> None:
    """A trace joins the publish in one process with receive, process and acknowledgement in another."""
    sent = json.loads(await asyncio.to_thread(published, server.url))
    traced = Traced(envelope=True)
    app = App(server.url, middlewares=[traced.middleware])

    @app.publisher("out")
    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int) -> dict[str, int]:
        return {"x": x}

    @app.subscriber(StreamSub("out", group="g"))
    async def end(x: int) -> None: ...

    async with app.running():
        await aeventually(lambda: len(traced.of("ack")) == 2)
    receive, further_receive = traced.of("receive")
    process, further = traced.of("process")
    acks = {span.name: span for span in traced.of("ack")}
    (send,) = traced.of("send")
    assert (receive.name, receive.kind, process.name, process.kind) == (
        "receive s",
        SpanKind.CLIENT,
        "process s",
        SpanKind.CONSUMER,
    )
    assert linked(receive) == {sent["span"]}
    assert (under(process), linked(process)) == (sent["span"], {ident(receive)})
    assert (under(acks["ack s"]), under(send), under(further)) == (ident(process), ident(process), ident(send))
    assert linked(further) == {ident(further_receive)}
    joined = [process, send, further, *acks.values()]
    assert {span.context.trace_id for span in joined} == {sent["trace"]}
    assert acks["ack s"].kind is SpanKind.CLIENT
    assert {
        "messaging.system": "redis",
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
        "messaging.destination.name": "s",
        "messaging.consumer.group.name": "g",
    }.items() <= dict(acks["ack s"].attributes or {}).items()
    assert dict(receive.attributes or {})["messaging.batch.message_count"] == 1
    assert process.end_time is not None
    assert acks["ack s"].end_time >= process.end_time >= receive.end_time


async def test_a_retry_is_linked_to_the_run_that_failed(server: ServerProcess) -> None:
    """Both runs of a retried entry are in one trace and numbered. The first ends as nack, the second as dead."""
    traced = Traced()
    app = App(server.url, middlewares=[traced.middleware])

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=Retry(max_deliveries=3, base=0.01))
    async def handle(msg: Message) -> None:
        raise Nack if msg.delivery_count == 1 else Reject("no good")

    async with app.running():
        entry = await app.publish("s", {"x": 1}, headers={})
        await aeventually(lambda: traced.of("dead"))
    (send,), (first, second) = traced.of("send"), traced.of("process")
    (nack,), (dead,) = traced.of("nack"), traced.of("dead")
    _, again = traced.of("receive")
    assert (under(first), under(second)) == (ident(send), ident(send))
    assert linked(second) == {ident(first), ident(again)}
    assert (under(nack), under(dead)) == (ident(first), ident(second))
    assert dict(second.attributes or {})["messaging.message.delivery_attempt"] == 2
    assert dict(dead.attributes or {})["messaging.message.id"] == entry
    assert dict(again.attributes or {})["millstream.claimed_count"] == 1


async def test_a_claim_by_another_stays_in_the_trace(server: ServerProcess) -> None:
    """An entry given back by one worker and run by another stays in the trace of its publish."""
    one, other = Traced(), Traced()

    def worker(traced: Traced, *, fails: bool) -> App:
        app = App(server.url, middlewares=[traced.middleware], registry=False)

        @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=Retry(max_deliveries=0))
        async def handle(x: int) -> None:
            if fails:
                raise Nack(delay=0.5)

        return app

    first = worker(one, fails=True)
    async with first.running():
        await first.publish("s", {"x": 1}, headers={})
        await aeventually(lambda: one.of("nack"))
    async with worker(other, fails=False).running():
        await aeventually(lambda: other.of("ack"))
    (send,), (process,) = one.of("send"), other.of("process")
    assert (under(process), process.context.trace_id) == (ident(send), send.context.trace_id)


async def test_a_batch_has_one_span_for_each_kind_of_outcome(server: ServerProcess) -> None:
    """A batch has one settle span for each kind of outcome, whatever the number of entries."""
    traced = Traced()
    app = App(server.url, middlewares=[traced.middleware])

    @app.subscriber(StreamSub("s", group="g"), batch=True, concurrency=1, retry=Retry(base=60))
    async def handle(xs: list[int]) -> None:
        raise BatchError({1: ValueError("bad")})

    await app.publish_batch("s", [{"x": x} for x in range(3)], headers={})
    async with app.running():
        await aeventually(lambda: traced.of("ack"))
        (ack,), (nack,), (process,) = traced.of("ack"), traced.of("nack"), traced.of("process")
    assert (under(ack), under(nack), under(process)) == (ident(process), ident(process), None)
    assert dict(ack.attributes or {})["messaging.batch.message_count"] == 2
    assert "messaging.message.id" in dict(nack.attributes or {})
    assert {ident(span) for span in (*traced.of("send"), *traced.of("receive"))} == linked(process)


async def test_an_outcome_that_comes_too_late_is_told(server: ServerProcess, client: redis.Redis) -> None:
    """An outcome for an entry that another consumer has taken is a span with an error."""
    traced = Traced()
    app = App(server.url, middlewares=[traced.middleware])

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(msg: Message) -> None:
        client.xclaim("s", "g", "thief", 0, [msg.id])

    async with app.running():
        await app.publish("s", {"x": 1})
        await aeventually(lambda: traced.of("settle"))
    (settle,) = traced.of("settle")
    assert (settle.status.status_code, dict(settle.attributes or {})["error.type"]) == (
        StatusCode.ERROR,
        "EntryLostError",
    )
    assert traced.of("ack") == []


async def test_an_entry_given_up_without_a_run_has_its_span(server: ServerProcess) -> None:
    """An entry that is dead-lettered without a run, after too many deliveries, still has its span."""
    traced = Traced()
    app = App(server.url, middlewares=[traced.middleware])
    ran = []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=Retry(max_deliveries=2))
    async def handle(x: int) -> None:
        ran.append(x)

    async with app:
        entry = await app.publish("s", {"x": 1}, headers={})
    with server.client() as binary:
        binary.xgroup_create("s", "g", "0")
        binary.xreadgroup("g", "crashed", {"s": ">"})
        binary.xclaim("s", "g", "crashed", 0, [entry], idle=60_000, retrycount=9)
    async with app.running():
        await aeventually(lambda: traced.of("dead"))
    (send,), (dead,) = traced.of("send"), traced.of("dead")
    assert (under(dead), ran) == (ident(send), [])


async def test_a_context_in_plain_fields_is_read(server: ServerProcess, client: redis.Redis) -> None:
    """A trace context in plain fields, as other programs write it, is read. The handler receives all fields."""
    traced, seen = Traced(), []
    app = App(server.url, middlewares=[traced.middleware])

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(entry: dict[str, str]) -> None:
        seen.append(entry)

    fields = {"x": "1", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "k=v"}
    client.xadd("s", fields)
    async with app.running():
        await aeventually(lambda: traced.of("ack"))
    (process,) = traced.of("process")
    assert (under(process), process.context.trace_id, seen) == (int("b" * 16, 16), int("a" * 32, 16), [fields])


@pytest.mark.parametrize(
    "value", [b"\xff\xfe\x00", b"00-" + b"f" * 100_000, b"\x1b[2J", b"", "\u0660\u0660-\u0661".encode()], ids=range(5)
)
async def test_a_hostile_context_is_none(server: ServerProcess, client: redis.Redis, value: bytes) -> None:
    """An invalid trace context is ignored, and the run starts a trace of its own."""
    traced = Traced()
    app = App(server.url, middlewares=[traced.middleware])

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(msg: Message) -> None: ...

    client.xadd("s", {"traceparent": value, "tracestate": value, "__data__": value})
    client.xadd("s", {"__data__": b"\x89BIN\r\n\x1a\n" + value})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
        await aeventually(lambda: len(traced.of("ack")) == 2)
    assert [under(span) for span in traced.of("process")] == [None, None]


class Careless(Middleware):
    """Tracing hooks that fail."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def received(self, msgs: Sequence[Message], began_ns: int) -> None:
        assert began_ns > 10**18
        for msg in msgs:
            msg.when_settled(self._fail)
            msg.when_settled(self.heard.append)
        raise RuntimeError("received")

    def _fail(self, outcome: str) -> None:
        raise RuntimeError(outcome)


async def test_hooks_that_fail_harm_no_entry(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Failing tracing hooks are logged. The entry is run and acknowledged, and other hooks are still called."""
    hooks, late = Careless(), []
    app = App(server.url, middlewares=[hooks])

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(msg: Message) -> None:
        await msg.ack()
        msg.when_settled(late.append)

    async with app.running():
        await app.publish("s", {"x": 1})
        await aeventually(lambda: late)
    assert (hooks.heard, late, pending(client, "s", "g")) == (["ack"], ["ack"], {})
    assert "a middleware's `received` failed" in caplog.text
    assert "a function given to when_settled failed" in caplog.text
