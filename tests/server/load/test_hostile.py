"""Hostile commands: whatever one client sends, another's PING has its reply soon, and the server continues.

Commands come from the table's own grammar, with sizes, numbers and patterns chosen to hurt. The bound is on the
processor time that the server takes between two PINGs of a second client. On an idle machine that is the PING's wait,
and on a busy one it is still the server's own work. Commands that remain slow by nature are in docs/server.md;
``bench/stalls.py`` measures the worst.
"""

import os
import random
from pathlib import Path

import pytest

from support import campaign
from support.grammar import Grammar
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire, pack

SECONDS = 0.25
"""Limit of the processor time that a client's command may cost the others, in seconds."""
MOST = 10_000
"""Most words of a command. Its cost grows with them, so a hundred times as many delay others, as in Redis."""
PATTERN = 5_000
"""Bytes of a pattern; with ten thousand of them in one command reading its bytes alone takes a while."""
# Commands that keep others waiting on request, or end the trial
LEFT_OUT = frozenset(
    {
        "shutdown", "debug", "client|pause", "client|kill", "client|reply", "config|set", "config|resetstat", "auth",
        "acl|setuser", "acl|deluser", "acl|load", "flushall", "flushdb", "swapdb", "select", "quit", "hello", "monitor",
    }
)  # fmt: skip
ENTRIES = 5000
KEYS = [b"s", b"s2", b"z", b"h", b"l", b"k", b"set", b"w1", b"none"]

LOOPS = (
    "'XADD', 's', i .. '-1', 'f', i",
    "'XADD', 's2', '*', 'a', i, 'b', i",
    "'ZADD', 'z', i, 'm' .. i",
    "'HSET', 'h', 'f' .. i, i",
    "'RPUSH', 'l', i",
    "'SADD', 'set', 'm' .. i",
    "'SET', 'w' .. i, i",
)

needs_schedstat = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="needs /proc to see processor time"
)


def fill(wire: Wire) -> None:
    """Write keys of every kind, so large that a cost that is not linear shows."""
    loop = "for i = 1, {0} do redis.call({1}) end"
    for words in LOOPS:
        assert wire.ask("EVAL", loop.format(ENTRIES, words), 0) is None
    wire.ask("SET", "k", b"x" * 1_000_000)
    for name in ("s", "s2"):
        wire.ask("XGROUP", "CREATE", name, "a", "0")
        wire.ask("XREADGROUP", "GROUP", "a", "a", "STREAMS", name, ">")


class Watcher:
    """Sends commands on one connection, and measures the server's work between PINGs on another."""

    def __init__(self, server: ServerProcess, seed: int) -> None:
        assert server.process is not None
        self.server = server
        self._stat = Path(f"/proc/{server.process.pid}/schedstat")  # of the main thread, which runs the commands
        self._grammar = Grammar(random.Random(seed), KEYS, most=MOST, pattern=PATTERN, left_out=LEFT_OUT)
        self._other = Wire(server.url)
        self._hostile = Wire(server.url)
        fill(self._other)

    def used(self) -> float:
        """Return the used processor time, in seconds."""
        return int(self._stat.read_text().split()[0]) / 1e9

    def one(self) -> float:
        """Run one command; return the most processor time between two PINGs until its reply, or its wait."""
        words = self._grammar.command()
        longest = self.longest(pack(*words))
        assert longest < SECONDS, f"{longest:.2f} s of work for {shown(words)}"
        return longest

    def longest(self, command: bytes) -> float:
        """Return the most processor time between two PINGs while a command runs."""
        before, longest = self.used(), 0.0
        self._hostile.socket.settimeout(10)
        try:
            self._hostile.socket.sendall(command)
            self._hostile.socket.settimeout(0)
            answered = False
        except OSError:  # cut
            answered = True
        for _ in range(5):
            assert self._other.ask("PING") == b"PONG"
            now = self.used()
            longest, before = max(longest, now - before), now
            if answered:
                break
            answered = self._has_answer()
        self._calm()
        return longest

    def _has_answer(self) -> bool:
        try:
            return self._hostile.socket.recv(1 << 20) != b"" or True
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _calm(self) -> None:
        """Open a new connection for the next command, without waits, subscriptions or unread replies."""
        self._hostile.close()
        self._hostile = Wire(self.server.url)
        length = self._other.ask("XLEN", "s")
        if self._other.ask("DBSIZE") < ENTRIES or not isinstance(length, int) or length < ENTRIES // 2:
            self._other.ask("FLUSHALL")
            fill(self._other)

    def end(self) -> None:
        """Check that the server is whole, without an internal error."""
        self._hostile.close()
        eventually(lambda: b"connected_clients:1\r\n" in self._other.ask("INFO", "clients"))
        assert b"millstream_internal_errors:0\r\n" in self._other.ask("INFO", "stats"), self.server.log.read_text()
        self._other.close()


def shown(words: list[bytes]) -> str:
    """Return a command, shortened."""
    text = " ".join(repr(word[:60])[1:] + (f"... {len(word)} bytes" if len(word) > 60 else "") for word in words[:12])
    return f"{len(words)} words: {text}"


def run(folder: Path, commands: int, seed: int) -> int:
    """Run ``commands`` commands on a server of their own."""
    with millstream_server(folder, "--memory") as server:
        watcher = Watcher(server, seed)
        for _ in range(commands):
            watcher.one()
        watcher.end()
        assert server.stop() == 0
    return commands


@needs_schedstat
def test_a_hostile_client_keeps_nobody_waiting(tmp_path: Path) -> None:
    """After each of 200 hostile commands, another client's PING has its reply within 250 ms of server work."""
    run(tmp_path, 200, int(os.environ.get("MILLSTREAM_SEED", "1")))


@needs_schedstat
@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_hostile_clients_keep_nobody_waiting(tmp_path: Path) -> None:
    """After each of 20,000 hostile commands, another client's PING has its reply within 250 ms of server work."""
    campaign.run("hostile", lambda seed: run(tmp_path / str(seed), 400, seed), range(50), unit="commands")
