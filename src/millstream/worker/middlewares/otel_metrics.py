"""OpenTelemetry's instruments around runs and publishes: the metrics of its messaging conventions. Extra: ``otel``.

https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/. Reads and acks cover many entries and belong
to no single run, so ``messaging.client.operation.duration`` measures publishes alone.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from opentelemetry import metrics

from millstream.worker.model.answers import Nack, PayloadError, Reject, answer

#: Value of ``messaging.system``: the streams are Redis's, whatever the server is.
SYSTEM = "redis"

#: Bounds in seconds, as the conventions require.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


_PLACE = ("messaging.system", "messaging.destination.name", "messaging.operation.name")


@dataclass(frozen=True, slots=True)
class Instrument:
    """One instrument, as docs/reference/metrics.md lists it."""

    kind: Literal["histogram", "counter"]  # ``histogram`` (seconds) or ``counter`` (messages)
    text: str  # Description
    attributes: tuple[str, ...]  # Attributes of its measurements, including optional ones


INSTRUMENTS: dict[str, Instrument] = {
    "messaging.process.duration": Instrument(
        "histogram",
        "Duration of a handler's run or batch. The attribute error.type is set if it raised; millstream.outcome "
        "is set for Nack and Reject, which are not errors.",
        (*_PLACE, "messaging.consumer.group.name", "error.type", "millstream.outcome"),
    ),
    "messaging.client.operation.duration": Instrument(
        "histogram",
        "Duration of a publish; error.type is set if it failed. Reads and acks are not "
        "included, since each covers many entries.",
        (*_PLACE, "messaging.operation.type", "error.type"),
    ),
    "messaging.client.consumed.messages": Instrument(
        "counter",
        "Entries given to handlers; each entry of a batch counts.",
        (*_PLACE, "messaging.consumer.group.name"),
    ),
    "messaging.client.sent.messages": Instrument(
        "counter", "Publishes that were sent, including failed ones.", (*_PLACE, "error.type")
    ),
}


class Instruments:
    """The four instruments of the conventions that apply."""

    def __init__(self, provider: "metrics.MeterProvider | None" = None) -> None:
        meter = metrics.get_meter("millstream", meter_provider=provider)
        self._process = _histogram(meter, "messaging.process.duration")
        self._operation = _histogram(meter, "messaging.client.operation.duration")
        self._consumed = _counter(meter, "messaging.client.consumed.messages")
        self._sent = _counter(meter, "messaging.client.sent.messages")

    @contextlib.contextmanager
    def processing(self, stream: str, group: str, messages: int) -> Iterator[None]:
        """Measure one run of a handler; a Nack or Reject is a decision of the handler and not an error."""
        known = {**place(stream, "process"), "messaging.consumer.group.name": group}
        self._consumed.add(messages, known)
        ended: dict[str, str] = {}
        begun = time.perf_counter()  # a monotonic clock
        try:
            yield
        except BaseException as error:
            said = answer(error)
            if isinstance(said, Nack | Reject):
                ended = {"millstream.outcome": type(said).__name__.lower()}
            else:
                ended = {"error.type": type(error).__qualname__}
            raise
        finally:
            self._process.record(time.perf_counter() - begun, {**known, **ended})

    @contextlib.contextmanager
    def sending(self, stream: str) -> Iterator[None]:
        """Measure one publish; content that cannot be written as an entry does not count as sent."""
        # A publish that failed on the server was sent nevertheless, so it counts as traffic
        known, failed, sent = place(stream, "send"), {}, True
        begun = time.perf_counter()
        try:
            yield
        except BaseException as error:
            failed = {"error.type": type(error).__qualname__}
            sent = not isinstance(error, PayloadError)
            raise
        finally:
            taken = time.perf_counter() - begun
            self._operation.record(taken, {**known, "messaging.operation.type": "send", **failed})
            if sent:
                self._sent.add(1, {**known, **failed})


def place(stream: str, operation: str) -> dict[str, str]:
    """Return the attributes that every measurement has: the stream and the operation."""
    return {"messaging.system": SYSTEM, "messaging.destination.name": stream, "messaging.operation.name": operation}


def _histogram(meter: metrics.Meter, name: str) -> metrics.Histogram:
    text = INSTRUMENTS[name].text
    return meter.create_histogram(name, unit="s", description=text, explicit_bucket_boundaries_advisory=_BOUNDS)


def _counter(meter: metrics.Meter, name: str) -> metrics.Counter:
    return meter.create_counter(name, unit="{message}", description=INSTRUMENTS[name].text)
