"""``--watch``: repeated reading through server restarts until Ctrl-C."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from click.testing import CliRunner

from cli.test_console import fill
from millstream.cli.main import main
from support.servers import ServerProcess, redis_server


@contextmanager
def watching(server: ServerProcess, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A process of ``millstream``, ended by Ctrl-C."""
    program = str(Path(sys.executable).with_name("millstream"))
    process = subprocess.Popen(
        [program, *words, "--url", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def line_of(stream: "IO[str] | None") -> str:
    """Return the next line of a process's output."""
    assert stream is not None
    return stream.readline()


def test_a_watched_stream_has_rates_and_outlives_its_server(memory_server: ServerProcess, tmp_path: Path) -> None:
    """``stream ls --watch`` has rates from the second reading on, and survives a server restart.

    Ctrl-C ends it with 130.
    """
    with redis_server(tmp_path, "--appendonly", "yes") as server:
        with server.client() as client:
            fill(client)
        with watching(server, "stream", "ls", "--watch", "0.1", "-o", "jsonl") as process:
            first, second = (json.loads(line_of(process.stdout)) for _ in range(2))
            assert (first["added_per_second"], second["added_per_second"]) == (None, 0.0)
            server.kill()
            assert "does not answer" in line_of(process.stderr)
            server.start()
            with server.client() as client:
                client.xadd("again", {"n": 1})
            while json.loads(line_of(process.stdout))["key"] != "again":
                pass
        assert process.returncode == 130


def test_an_interval_is_a_number_of_seconds(memory_server: ServerProcess) -> None:
    """``--watch`` alone is two seconds, and the least interval is a tenth."""
    done = CliRunner().invoke(main, ["stream", "ls", "--watch", "0.01", "--url", memory_server.url])
    assert (done.exit_code, "0.1" in done.output) == (2, True)


def test_watched_workers_are_listed_again(memory_server: ServerProcess) -> None:
    """``worker ls --watch`` prints the live workers each time."""
    with watching(memory_server, "worker", "ls", "--watch", "0.1", "-o", "json") as process:
        reader = json.JSONDecoder()
        text = ""
        while text.count('"workers"') < 2:
            text += line_of(process.stdout)
        facts, end = reader.raw_decode(text)
        assert facts["workers"] == []
        assert text[end:].strip()
