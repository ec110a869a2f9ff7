"""Prints the names that programs, shells and dashboards use, as JSON, of the version of Millstream that is on the path.

Run by ``record.py`` with 0.1, and by ``test_names.py`` with the present version. Only what is public is imported.
"""

import asyncio
import importlib
import importlib.metadata
import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import click

PUBLIC: dict[str, tuple[str, ...]] = {
    "millstream": (),
    "millstream.client": (),
    "millstream.client.connect": ("connect", "connect_async"),
    "millstream.client.deadletter": ("unpack", "pack", "DeadLetter", "dead_key", "parse_history"),
    "millstream.client.url": ("find_url",),
    "millstream.compat.faststream": (
        "AckPolicy", "FastStream", "Logger", "Redis", "RedisBroker", "RedisStreamMessage", "StreamSub",
    ),
    "millstream.errors": (),
    "millstream.server.thread": ("ServerThread",),
    "millstream.spark": ("archive", "java_problem", "recover", "session", "watch"),
    "millstream.testing": (
        "Clock", "WorkerUnderTest", "millstream_any_url", "millstream_clock", "millstream_memory", "millstream_server",
        "millstream_url", "millstream_worker",
    ),
    "millstream.worker.logcontext": ("EntryFilter", "LogContext", "entry_context"),
    "millstream.worker.middleware": ("Middleware", "Timeout"),
    "millstream.worker.payload": ("PayloadError",),
    "millstream.worker.testing": ("run", "Broker", "StillBusyError"),
    "millstream.worker.tracing": ("Tracing",),
}  # fmt: skip
"""Modules and names that README, docs and docstrings tell users to import; empty: all public ones."""


def python_names() -> dict[str, Any]:
    """Names with the parameters of what can be called: module:name[.method] -> names of parameters."""
    found: dict[str, Any] = {}
    for module, wanted in PUBLIC.items():
        loaded = importlib.import_module(module)
        for name in wanted or [each for each in dir(loaded) if not each.startswith("_")]:
            value = getattr(loaded, name)
            if inspect.ismodule(value) or (
                not wanted and getattr(value, "__module__", "millstream")[:10] != "millstream"
            ):
                continue
            found |= dict(_described(f"{module}:{name}", value))
    return found


def _described(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, _parameters(value)
    if inspect.isclass(value):
        for each, member in inspect.getmembers(value):
            if not each.startswith("_") and any("millstream" in base.__module__ for base in _owners(value, each)):
                yield f"{name}.{each}", _parameters(member)


def _owners(kind: type, name: str) -> list[type]:
    return [base for base in kind.__mro__ if name in vars(base)][:1]


def _parameters(value: Any) -> list[str] | None:
    if not callable(value):
        return None
    try:
        return list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return None


def commands() -> dict[str, list[str]]:
    """Every subcommand with its options and the choices they take."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="millstream")
    return dict(_walk("millstream", entry.load()))


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, list[str]]]:
    words = []
    for parameter in command.params:
        given = (
            [*parameter.opts, *parameter.secondary_opts]
            if isinstance(parameter, click.Option)
            else [parameter.human_readable_name]
        )
        words += given
        if isinstance(parameter.type, click.Choice):
            words += [f"{given[0]}={choice}" for choice in parameter.type.choices]
    yield name, sorted(words)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from _walk(f"{name} {each}", found)


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.records.append(record)


async def monitoring() -> dict[str, list[str]]:
    """What an app at work tells: metrics with labels, spans and instruments with attributes, loggers and records."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from millstream import App, Message, Nack, Reject, Retry, StreamSub
    from millstream.worker import testing
    from millstream.worker.tracing import Tracing

    spans, meters, kept = InMemorySpanExporter(), InMemoryMetricReader(), Kept()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app = App(middlewares=[Tracing(provider, MeterProvider([meters]))])
    logging.getLogger("millstream").addHandler(kept)
    logging.getLogger("millstream").setLevel(logging.DEBUG)

    @app.subscriber(StreamSub("s", group="g"), retry=Retry(max_deliveries=2, base=0.01))
    async def work(x: int, msg: Message) -> None:
        if x == 1:
            raise ValueError("no")
        if x == 2:
            raise Reject("no")
        if x == 3 and msg.delivery_count == 1:
            raise Nack("no")

    @app.subscriber(StreamSub("b", group="g"), batch=True)
    async def many(x: list[int]) -> None:
        del x

    async with testing.run(app, raise_errors=False) as broker:
        for number in range(5):
            await app.publish("s", {"x": number}, headers={})
            await app.publish("b", {"x": number})
        await broker.run_until_idle()
        for _ in range(3):
            await broker.advance(30)
        body, _ = await app.metrics()
        stats = app.stats()
    text = body.decode()
    told = set(re.findall(r"^# TYPE (millstream_\w+)", text, re.MULTILINE))
    told |= {f"{name}{{{label}}}" for name, labels in re.findall(r"^(millstream_\w+){(.*)}", text, re.MULTILINE)
             for label in re.findall(r"(\w+)=\"", labels)}  # fmt: skip
    measured = json.loads(meters.get_metrics_data().to_json())  # type: ignore[union-attr] # something was measured
    instruments = [
        each for one in measured["resource_metrics"] for scope in one["scope_metrics"] for each in scope["metrics"]
    ]
    plain = set(vars(logging.makeLogRecord({})))
    return {
        "metrics": sorted(told),
        "stats": sorted({name for each in stats.values() for name in each}),
        "spans": sorted({each.name for each in spans.get_finished_spans()}),
        "span attributes": sorted({name for each in spans.get_finished_spans() for name in each.attributes or {}}),
        "instruments": sorted(f"{each['name']} {each['unit']}" for each in instruments),
        "instrument attributes": sorted(
            {
                f"{each['name']}: {name}"
                for each in instruments
                for point in each["data"]["data_points"]
                for name in point["attributes"]
            }
        ),
        "loggers": sorted({each.name for each in kept.records}),
        "log attributes": sorted(
            {name for each in kept.records for name in vars(each)} - plain - {"message", "asctime"}
        ),
    }


def main() -> None:
    """Print everything."""
    warnings.simplefilter("ignore", DeprecationWarning)  # an alias is what is looked for
    found = {"python": python_names(), "cli": commands(), "monitoring": asyncio.run(monitoring())}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
