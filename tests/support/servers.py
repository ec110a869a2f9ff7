"""Real server processes for tests: redis-server and Millstream, each on a free port, in a separate folder."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.needs import program
from support.ports import free_port
from support.waiting import DEADLINE, eventually


class ServerProcess:
    """One server in a separate process.

    Args:
        command: Program and arguments.
        port: Port that it will listen on.
        log: File for its output, shown if it does not start.
    """

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self.command = list(command)
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.settings: dict[str, str] = {}

    def start(self, seconds: float = DEADLINE) -> "ServerProcess":
        """Start the server and return when it replies to PING.

        Args:
            seconds: Maximum time; loading a long log beside other work may take long.
        """
        self.launch()
        try:
            eventually(self._answers, seconds, what=f"{self.command[0]} answers on port {self.port}")
        except AssertionError:
            self.kill()
            raise AssertionError(f"server did not start:\n{self.log.read_text(errors='replace')}") from None
        return self

    def launch(self) -> None:
        """Start the server without waiting for it."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=self.log.parent
            )

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(
                f"server ended with code {self.process.returncode}:\n{self.log.read_text(errors='replace')}"
            )
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.ResponseError as error:  # its disk takes no writes, and it tells those who watch it
                return str(error).startswith("MISCONF")
            except redis.RedisError:  # not listening yet, or still loading its log
                return False

    def client(self, **options: object) -> redis.Redis:
        """Return a redis-py client that retries nothing by itself."""
        options.setdefault("retry", Retry(NoBackoff(), 0))
        options.setdefault("socket_timeout", 30)
        client: redis.Redis = redis.Redis.from_url(self.url, **options)
        return client

    def as_new(self) -> "ServerProcess":
        """Remove the keys, users and settings that earlier tests left on a shared server.

        A user of another file's test once accepted a wrong password.
        """
        with self.client(decode_responses=True) as client:
            _, users, settings = client.pipeline(transaction=False).flushall().acl_users().config_get().execute()
            if others := [user for user in users if user != "default"]:
                client.acl_deluser(*others)
            self.settings = self.settings or settings
            for name in settings.keys() & self.settings.keys():
                if settings[name] != self.settings[name]:
                    client.config_set(name, self.settings[name])
        return self

    def release(self) -> tuple[int, ...]:
        """Return the Redis version that the server reports, for comparisons that depend on it."""
        with self.client(decode_responses=True) as client:
            return tuple(int(part) for part in client.info("server")["redis_version"].split("."))

    def stop(self) -> int:
        """Stop the server as a service manager does (SIGTERM); return its exit code."""
        return self.end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill the server as a crash does (SIGKILL); return its exit code."""
        return self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> int:
        """End the server by a signal; return its exit code."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        self.process = None
        return code

    def send(self, number: signal.Signals) -> None:
        """Send the server a signal that does not end it."""
        assert self.process is not None
        self.process.send_signal(number)

    def __enter__(self) -> "ServerProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()


def redis_server(folder: Path, *options: str, path: str = "") -> ServerProcess:
    """Return a redis-server that is not started yet, or skip the test without one (fail it under CI).

    Args:
        folder: Folder for its data and its output.
        options: More command-line arguments.
        path: Path of another program with the same options.
    """
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    words = [path or program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    words += ["--save", "", "--appendonly", "no"]
    words += ["--repl-diskless-sync-delay", "0", *options]  # else a replica waits 5 s for others to copy with it
    return ServerProcess(words, port, folder / "redis-server.out")


def millstream_server(folder: Path, *options: str, port: int | None = None) -> ServerProcess:
    """Return a Millstream server on ``folder/data`` that is not started yet; restart it on the folder to test recovery.

    Args:
        folder: Folder for its data directory and its output.
        options: More arguments for ``millstream serve``; with ``--memory`` no data directory is given.
        port: Port of the server; a free one unless given.
    """
    port = port or free_port()
    folder.mkdir(parents=True, exist_ok=True)
    words = [str(Path(sys.executable).with_name("millstream")), "serve", "--host", "127.0.0.1", "--port", str(port)]
    if "--memory" not in options:
        words += ["--dir", str(folder / "data")]
    return ServerProcess([*words, *options], port, folder / "millstream.out")
