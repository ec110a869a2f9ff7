"""A cold command starts quickly because it loads few modules. ``bench/console.py start`` measures the time."""

import json
import os
import subprocess
import sys

import pytest

from cli.test_console import fill
from support.servers import ServerProcess

# A command that only reads needs none of these.
HEAVY = {"pyspark", "pandas", "numpy", "pyarrow", "pydantic", "pydantic_core", "fast_depends", "msgspec", "msgpack"}
HEAVY |= {"prometheus_client", "uvloop", "lupa", "starlette", "uvicorn", "jinja2", "watchfiles", "tomlkit"}
SERVERS = ("millstream.node", "millstream.engine", "millstream.commands", "millstream.embedded", "millstream.server")
OTHERS = ("millstream.worker", "millstream.spark", "millstream.client.dead_letter")

RUN = "import sys, json, atexit\natexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
MAIN = "from millstream.cli.main import main\nmain()\n"


def loaded(server: ServerProcess, *words: str) -> set[str]:
    """Return every module that a command has loaded when it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", RUN + MAIN, *words],
        env={**os.environ, "MILLSTREAM_URL": server.url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout
    found: list[str] = json.loads(ended.stderr.splitlines()[-1])
    return set(found)


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["stream", "ls"], OTHERS),
        (["stream", "ls", "-o", "json"], (*OTHERS, "rich", "click.testing")),
        (["pending", "ls", "orders", "billing", "-o", "jsonl"], (*OTHERS, "rich")),
        (["group", "show", "orders", "billing"], ("millstream.worker.app", "millstream.worker.handlers")),
    ],
    ids=["table", "json", "pending", "advice"],
)
def test_a_command_that_looks_loads_little(memory_server: ServerProcess, words: list[str], others: list[str]) -> None:
    """A reading command loads only redis, its own modules, and those for tables if it draws one."""
    with memory_server.client() as client:
        client.flushall()
        fill(client)
    found = loaded(memory_server, *words)
    assert {"redis", "millstream.client.line"} <= found
    assert sorted({name.partition(".")[0] for name in found} & HEAVY) == []
    strange = [name for name in found for part in (*SERVERS, *others) if f"{name}.".startswith(f"{part}.")]
    assert sorted(strange) == []


def test_the_count_sees_what_is_loaded(memory_server: ServerProcess) -> None:
    """The count of loaded modules sees a planted import."""
    with memory_server.client() as client:
        client.xadd("orders", {"n": 1})
    assert "rich.table" in loaded(memory_server, "stream", "ls")
