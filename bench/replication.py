"""Cost and speed of replication: Millstream and Redis as primaries and replicas, in one run.

    python bench/replication.py feed [--pairs N]         a primary with 0 and 1 replica: processor time of each XADD
    python bench/replication.py apply [--commands N]     speed of a replica while its primary works at full rate
    python bench/replication.py copy [--entries N]       a full copy, beside a start on its data; PINGs meanwhile

The load is redis-benchmark's, with ``-P 16`` and 50 clients or with one command at a time. The measure is processor
time, since the machine is shared: of the primary for each command, of the replica for each that it applies.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import redis
from pairs import free_port

KINDS = ("redis", "millstream")
ADD = ("XADD", "s", "*", "field", "value-of-some-length")
_TICKS = os.sysconf("SC_CLK_TCK")
# Linux's name of the clock of another process's processor time, of which the process's number is a part
_PROCESSOR_TIME = 2
# A primary that disconnects no replica: the measure is the replica's speed
PATIENT = {"client-output-buffer-limit": "replica 0 0 0", "repl-backlog-size": "16mb"}
# So many XADD fill the backlog, which is memory that is asked for once
FILLING = 220_000


@dataclass
class Server:
    """A running server."""

    kind: str
    port: int
    words: list[str]
    process: "subprocess.Popen[bytes]"

    def ask(self) -> redis.Redis:
        """Return a client."""
        return redis.Redis(port=self.port)

    def restart(self) -> float:
        """Kill the server and start it again; return the seconds until it shows its data."""
        entries = self.ask().xlen("s")
        self.process.kill()
        self.process.wait()
        begun = time.monotonic()
        self.process = started(self.words)
        wait(lambda: self.ask().xlen("s") == entries)
        return time.monotonic() - begun

    def seconds(self, *, children: bool = False) -> float:
        """Return the processor time so far.

        Args:
            children: True to include its ended child processes.
        """
        own = time.clock_gettime((~self.process.pid << 3) | _PROCESSOR_TIME)
        if not children:
            return own
        words = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return own + sum(map(int, words[13:15])) / _TICKS


@contextlib.contextmanager
def running(kind: str, folder: str, *, follows: "Server | None" = None, memory: bool = False) -> Iterator[Server]:
    """Run a server within a ``with`` block.

    Args:
        kind: One of :data:`KINDS`.
        folder: Folder for its data.
        follows: Its primary.
        memory: True to let Millstream keep nothing; Redis never does.
    """
    port = free_port()
    if kind == "redis":
        words = [
            str(shutil.which("redis-server")),
            "--port",
            str(port),
            "--save",
            "",
            "--dir",
            tempfile.mkdtemp(dir=folder),
        ]
        for name, value in PATIENT.items():
            words += [f"--{name}", value]
        words += ["--replicaof", f"127.0.0.1 {follows.port}"] if follows else []
    else:
        place = ["--memory"] if memory else ["--dir", tempfile.mkdtemp(dir=folder)]
        words = [str(Path(sys.executable).with_name("millstream")), "serve", "--port", str(port), *place]
        for name, value in PATIENT.items():
            words += ["--set", f"{name}={value}"]
        words += ["--replicaof", f"127.0.0.1:{follows.port}"] if follows else []
    server = Server(kind, port, words, started(words))
    try:
        wait(lambda: bool(server.ask().ping()))
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def started(words: list[str]) -> "subprocess.Popen[bytes]":
    """Start a process without output."""
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait(condition: "object", seconds: float = 120) -> None:
    """Wait until a condition holds, and ignore errors of a server that does not reply yet."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(redis.RedisError):
            if condition():  # type: ignore[operator]  # a function
                return
        time.sleep(0.02)  # a look must cost the servers that are measured little
    sys.exit("it took too long")


def is_even(primary: Server, replica: Server) -> bool:
    """Return True if the replica has applied everything."""
    told = replica.ask().info("replication")
    return (
        told.get("master_link_status") == "up"
        and told["slave_repl_offset"] >= primary.ask().info("replication")["master_repl_offset"]
    )


def load(port: int, count: int, *, pipeline: int = 16) -> None:
    """Run so many XADD by redis-benchmark, with 50 clients."""
    program = str(shutil.which("redis-benchmark"))
    words = [program, "-p", str(port), "-q", "-c", "50", "-P", str(pipeline), "-n", str(count), *ADD]
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)


def feed(folder: str, pairs: int, count: int) -> None:
    """Print the cost of one replica for its primary.

    Two primaries run side by side: one has a replica all the time, the other never had one, so that it makes and
    keeps no bytes. They take turns with the same load, each first in every second pair.
    """
    for kind in KINDS:
        with (
            running(kind, folder) as alone,
            running(kind, folder) as primary,
            # a Redis replica, which takes what comes faster than both make it
            running("redis", folder, follows=primary) as replica,
        ):
            wait(lambda p=primary, r=replica: is_even(p, r))  # type: ignore[misc]  # a default
            for pipeline in (1, 16):
                load(alone.port, FILLING)
                load(primary.port, FILLING)
                found = [
                    _pair((alone, primary), replica, count if pipeline == 1 else 5 * count, pipeline, place % 2)
                    for place in range(pairs)
                ]
                without, with_one = ([each[place] for each in found] for place in (0, 1))
                ratios = [with_one / without for without, with_one in found]
                print(
                    f"{kind:10} -P {pipeline:2}: {_spread(without)} us an XADD without a replica, {_spread(with_one)} "
                    f"with one; in pairs {median(ratios) - 1:+.1%} ({min(ratios) - 1:+.0%}..{max(ratios) - 1:+.0%})",
                    flush=True,
                )


def _pair(
    primaries: tuple[Server, Server], replica: Server, count: int, pipeline: int, first: int
) -> tuple[float, float]:
    """Return the microseconds of the processor for each XADD, of both primaries one after the other."""
    used = [0.0, 0.0]
    for place in (first, 1 - first):
        server = primaries[place]
        for each in primaries:
            each.ask().delete("s")  # so that no round has more memory to find than another
        wait(lambda: is_even(primaries[1], replica))
        begun = server.seconds()
        load(server.port, count, pipeline=pipeline)
        used[place] = (server.seconds() - begun) / count * 1e6
    return used[0], used[1]


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}..{max(values):.2f})"


def apply(folder: str, count: int) -> None:
    """Print the speed at which a replica applies its primary's commands."""
    for kind in KINDS:
        for follower in KINDS if kind == "redis" else KINDS[1:]:
            with running(kind, folder) as primary, running(follower, folder, follows=primary) as replica:
                load(primary.port, 1000)
                wait(lambda p=primary, r=replica: is_even(p, r))  # type: ignore[misc]  # a default
                used, begun = replica.seconds(), time.monotonic()
                load(primary.port, count)
                written = time.monotonic() - begun
                wait(lambda p=primary, r=replica: is_even(p, r))  # type: ignore[misc]  # a default
                took, spent = time.monotonic() - begun, replica.seconds() - used
                print(
                    f"{follower:10} behind {kind:10}: written at {count / written:,.0f}/s, applied at "
                    f"{count / took:,.0f}/s; {spent / count * 1e6:.2f} us of its processor each"
                )


def filled(server: Server, entries: int) -> None:
    """Fill a stream with so many entries, of which a tenth are pending."""
    client = server.ask()
    load(server.port, entries)
    client.xgroup_create("s", "g", "0")
    for _ in range(entries // 10_000):
        client.xreadgroup("g", "c", {"s": ">"}, count=1000)


def copy(folder: str, entries: int, rounds: int) -> None:
    """Print the time of a full copy, beside a start on the same data, and of PINGs during a last copy."""
    for kind, follower, memory in (
        ("millstream", "millstream", False),
        ("millstream", "redis", False),
        ("redis", "millstream", False),
        ("millstream", "millstream", True),
    ):
        with running(kind, folder, memory=memory) as primary:
            filled(primary, entries)
            name = f"{kind}{' --memory' if memory else ''} to {follower}"
            is_snapshot = follower == "millstream" and not memory  # what the replica's log is then
            found = [_copied(primary, follower, folder, is_snapshot=is_snapshot) for _ in range(rounds)]
            whole, used, again = (median(column) for column in zip(*found, strict=True))
            print(f"{name}: {whole:.2f} s ({entries / whole:,.0f}/s), {used:.1f} of processors", end="")
            if is_snapshot:
                ratios = [took / start for took, _, start in found]
                print(f"; a start on it {again:.2f} s: {median(ratios):.1f} x {_range(ratios)}", end="")
                bare = median(_bare_start(folder) for _ in range(rounds))
                print(f"; a start on nothing {bare:.2f} s, without it {(whole - bare) / (again - bare):.1f} x", end="")
            times: list[float] = []
            over = threading.Event()
            probe = threading.Thread(target=_probe, args=(primary, times, over))
            probe.start()
            beside, _, _ = _copied(primary, follower, folder, is_snapshot=False)
            over.set()
            probe.join()
            times.sort()
            print(
                f"; beside PINGs {beside:.2f} s, PING p99 {times[len(times) * 99 // 100] * 1000:.1f} ms, "
                f"longest {times[-1] * 1000:.1f}",
                flush=True,
            )


def _copied(primary: Server, follower: str, folder: str, *, is_snapshot: bool) -> tuple[float, float, float]:
    """Return the seconds of a copy from the replica's start, of all processors, and of a start on its data."""
    begun, used = time.monotonic(), primary.seconds(children=True)
    with running(follower, folder, follows=primary) as replica:
        wait(lambda: is_even(primary, replica))
        whole = time.monotonic() - begun
        used = primary.seconds(children=True) - used + replica.seconds(children=True)
        return whole, used, replica.restart() if is_snapshot else 0.0


def _bare_start(folder: str) -> float:
    """Return the seconds of a start without data, which are a part of the copy's time and of the other start's."""
    begun = time.monotonic()
    with running("millstream", folder):
        return time.monotonic() - begun


def _range(values: list[float]) -> str:
    return f"({min(values):.1f}..{max(values):.1f})"


def _probe(server: Server, times: list[float], over: threading.Event) -> None:
    client = server.ask()
    while not over.is_set():
        begun = time.perf_counter()
        client.ping()
        times.append(time.perf_counter() - begun)
        time.sleep(0.001)  # one PING at a time, as a client with something else to do sends them


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["feed", "apply", "copy"])
    parser.add_argument("--pairs", type=int, default=15, help="of rounds, for feed")
    parser.add_argument("--commands", type=int, default=500_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="of copies, for copy")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "feed":
            feed(folder, options.pairs, options.commands // 25)
        elif options.what == "apply":
            apply(folder, options.commands)
        else:
            copy(folder, options.entries, options.rounds)


if __name__ == "__main__":
    main()
