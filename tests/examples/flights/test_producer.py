"""The demo's producer: each event is in the stream once, whatever happens to the connection."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator

import pytest

from flights.data import FlightEvent
from flights.producer import Producer
from support.servers import ServerProcess
from support.waiting import eventually

pytestmark = pytest.mark.realserver

EVENTS = [FlightEvent(f"{1000 + number}-0", {"number": str(number)}) for number in range(5_000)]
EVERYTHING = 10**9


def finish(producer: Producer) -> None:
    """Open the gate, wait for the producer's end, and raise its error."""
    producer.open()
    producer.join(30)
    assert not producer.is_alive()
    if producer.error:
        raise producer.error


def numbers(server: ServerProcess) -> list[int]:
    """Return the numbers in the stream."""
    with server.client() as client:
        return [int(fields[b"number"]) for _, fields in client.xrange("s")]


def test_publishes_everything_in_order(real_redis: ServerProcess) -> None:
    """The producer adds each event once, in order, with its own id."""
    producer = Producer(real_redis.url, "s", EVENTS, EVERYTHING)
    producer.start()
    finish(producer)
    assert numbers(real_redis) == list(range(5_000))
    assert producer.published == 5_000
    assert producer.finished
    assert producer.resumptions == []


def test_waits_at_its_gate(real_redis: ServerProcess) -> None:
    """The producer adds no event beyond its gate before the gate moves."""
    producer = Producer(real_redis.url, "s", EVENTS, 1_234)
    producer.start()
    eventually(lambda: producer.at_gate)
    assert numbers(real_redis) == list(range(1_234))
    producer.allow(1_300)
    eventually(lambda: producer.published == 1_300)
    producer.stop()
    producer.join(30)
    assert not producer.finished
    assert len(numbers(real_redis)) == 1_300


def test_goes_on_after_a_cut_connection(real_redis: ServerProcess) -> None:
    """After its idle connection is cut, the producer continues without repetition."""
    producer = Producer(real_redis.url, "s", EVENTS, 2_000)
    producer.start()
    eventually(lambda: producer.at_gate)
    with real_redis.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    finish(producer)
    assert numbers(real_redis) == list(range(5_000))
    assert producer.published == 5_000


@contextlib.contextmanager
def deaf_proxy(target: int, after: int) -> Iterator[int]:
    """Yield a port that forwards to ``target``. The first connection loses its replies after so many bytes and is cut.

    The commands sent meanwhile reach the server without a reply.
    """
    with socket.create_server(("127.0.0.1", 0)) as door:
        connections = itertools.count()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = door.accept()
                    server = socket.create_connection(("127.0.0.1", target))
                    limit = after if next(connections) == 0 else None
                    threading.Thread(target=pump, args=(client, server, None), daemon=True).start()
                    threading.Thread(target=pump, args=(server, client, limit), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield door.getsockname()[1]


def pump(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
    """Copy bytes until the end; with a limit, drop the bytes after it and end both connections."""
    passed = 0
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            passed += len(chunk)
            if limit is not None and passed > limit:
                break
            sink.sendall(chunk)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def test_unknown_outcomes_are_resolved(real_redis: ServerProcess) -> None:
    """Events that were added without a reply are recognized and not added again."""
    with deaf_proxy(real_redis.port, after=20_000) as port:
        producer = Producer(f"redis://127.0.0.1:{port}/0", "s", EVENTS, EVERYTHING)
        producer.start()
        finish(producer)
    assert numbers(real_redis) == list(range(5_000))
    assert len(producer.resumptions) == 1
    assert producer.resumptions[0].known > 0


def test_refusals_end_it(real_redis: ServerProcess) -> None:
    """A permanent error of the server ends the producer and is reported."""
    with real_redis.client() as client:
        client.set("s", "no stream")
    producer = Producer(real_redis.url, "s", EVENTS, EVERYTHING)
    producer.start()
    producer.join(30)
    assert "WRONGTYPE" in str(producer.error)
    assert not producer.finished
