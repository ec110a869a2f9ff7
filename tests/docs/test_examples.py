"""Each program of examples/ does what its docstring promises, started by the commands that are printed there."""

import json
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ports import free_port
from support.reader import Reader
from support.servers import ServerProcess, millstream_server
from support.source import ROOT
from support.waiting import eventually

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with millstream_server(tmp_path_factory.mktemp("server"), "--memory") as running:
        yield running


@pytest.fixture
def reader(tmp_path: Path, server: ServerProcess) -> Reader:
    """Return a reader with a copy of the examples and an empty server."""
    server.as_new()
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return Reader(folder, server.url)


def ordered(url: str) -> str:
    """Send an order and return the id of its entry."""
    body = json.dumps({"item": "tea"}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/orders", body, {"content-type": "application/json"})
    ) as got:
        return str(json.load(got)["entry"])


def test_examples_are_short() -> None:
    """The folder has five example programs of at most 40 lines."""
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) == 5
    assert max(lengths.values()) <= 40, lengths


def test_an_order_is_billed_delayed_or_dead(reader: Reader, server: ServerProcess) -> None:
    """One of three orders is billed, one is delayed by an hour, and one is a dead letter after three deliveries."""
    with reader.runs("millstream run shop:app") as log, server.client() as client:
        for price in (3, 0, -3):
            client.xadd("orders", {"item": "tea", "price": price})
        eventually(lambda: client.xlen("orders:dead") == 1, 60)
        eventually(lambda: "billed tea for 3.0" in log.read_text())
        assert "negative" in reader.types("millstream dead ls orders")
        assert client.xpending("orders", "billing")["pending"] == 1


def test_a_request_is_an_entry_that_the_same_process_handles(reader: Reader) -> None:
    """In the FastAPI example, a request becomes an entry that the worker in the same process handles."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with reader.starts(f"uvicorn fastapi_app:web --port {port}", "web.log"):
        eventually(lambda: ordered(url))

        def billed() -> bool:
            with urllib.request.urlopen(f"{url}/billed") as answer:
                return bool(json.load(answer) == ["tea"])

        eventually(billed)


def test_flask_publishes(reader: Reader, server: ServerProcess) -> None:
    """In the Flask example, a request's body becomes an entry."""
    port = free_port()
    with reader.starts(f"flask --app flask_publish:web run --port {port}", "web.log"):
        entry = eventually(lambda: ordered(f"http://127.0.0.1:{port}"))
        with server.client() as client:
            assert client.xrange("orders") == [(entry.encode(), {b"item": b"tea"})]


def test_a_worker_is_tested_without_a_server(reader: Reader, server: ServerProcess) -> None:
    """The example test of a worker passes without a server."""
    assert "2 passed" in reader.types(f"{sys.executable} -m pytest -q -p no:cacheprovider test_embedded.py")
    with server.client() as client:
        assert client.dbsize() == 0


@pytest.mark.spark
@pytest.mark.full
def test_sums_go_into_another_stream(reader: Reader, server: ServerProcess) -> None:
    """The Spark example reads typed columns and writes a row of totals for each item."""
    with server.client() as client:
        for item, price in (("tea", 3), ("milk", 1), ("tea", 4.5)):
            client.xadd("orders", {"item": item, "price": price})
        reader.types(f"{sys.executable} spark_batch.py")
        found = {fields[b"item"]: float(fields[b"total"]) for _, fields in client.xrange("totals")}
    assert found == {b"tea": 7.5, b"milk": 1.0}
