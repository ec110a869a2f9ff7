"""Reply times while a large log is rewritten, the size of the log, and the time of a restart.

A server with the default durability gets entries of five fields in one stream. A separate process then sends PING and
XADD in turn, one by one, first with nothing else running, then while the whole log is rewritten. At last the server is
killed and started again.

    .venv/bin/python bench/rewrite.py --entries 1000000

``--full-rate N`` measures something else: as many writers as saturate the server add to trimmed streams until the log
was rewritten N times automatically. It prints the peak size of the log beside a fresh snapshot of the same data, and
the time of a rewrite.

    .venv/bin/python bench/rewrite.py --entries 1000000 --full-rate 5
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from pairs import free_port

BATCH = 500
PROBE = """
import sys, time, redis
client = redis.Redis(port=int(sys.argv[1]))
times, end = {"PING": [], "XADD": []}, time.monotonic() + float(sys.argv[2])
def done():
    return time.monotonic() >= end and not int(client.info("persistence")["aof_rewrite_in_progress"])
count = 0
while count % 200 or not done():
    count += 1
    for name, words in (("PING", ["PING"]), ("XADD", ["XADD", "probe", "MAXLEN", "1000", "*", "f", "v"])):
        begun = time.perf_counter()
        client.execute_command(*words)
        times[name].append(time.perf_counter() - begun)
for name, found in times.items():
    found.sort()
    at = lambda part: found[min(int(len(found) * part), len(found) - 1)] * 1000
    print(name, len(found), *(f"{at(part):.2f}" for part in (0.5, 0.99, 0.999, 1)))
"""

STREAMS = 8
WRITER = """
import sys, redis
port, name, length, extra = sys.argv[1:]
client = redis.Redis(port=int(port))
words = ["XADD", name, "MAXLEN", length, "*", *extra.split("|")]
while True:
    with client.pipeline(transaction=False) as pipe:
        for _ in range(200):
            pipe.execute_command(*words)
        pipe.execute()
"""


def fields(number: int) -> dict[str, str]:
    """Return five fields, about 90 bytes of names and values."""
    return {
        "sensor": f"temp-{number % 1000}",
        "place": "hall-7",
        "value": str(number),
        "unit": "celsius",
        "note": "all is well here",
    }


def memory(process: "subprocess.Popen[bytes]", word: str) -> int:
    """Return a process's memory in MiB as the system counts it: ``VmRSS`` now, ``VmHWM`` at most."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(word)) // 1024


def start(folder: str, port: int) -> tuple["subprocess.Popen[bytes]", float]:
    """Start a server on the folder; return it with the seconds until it was ready."""
    begun = time.monotonic()
    program = str(Path(sys.executable).with_name("millstream"))
    words = [program, "serve", "--dir", folder, "--port", str(port)]
    words += ["--set", "auto-aof-rewrite-percentage=0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    if not process.stdout.readline().startswith(b"ready"):
        sys.exit("the server did not start")
    return process, time.monotonic() - begun


def probed(port: int, seconds: float) -> str:
    """Return the probe's output: a line per command with count, p50, p99, p99.9 and maximum, in milliseconds."""
    found = subprocess.run([sys.executable, "-c", PROBE, str(port), str(seconds)], capture_output=True, check=True)
    return found.stdout.decode()


def loaded(client: redis.Redis, entries: int, streams: list[str]) -> None:
    """Add so many entries to the streams, in turn."""
    for first in range(0, entries, BATCH):
        with client.pipeline(transaction=False) as pipe:
            for number in range(first, min(first + BATCH, entries)):
                pipe.xadd(streams[number % len(streams)], fields(number))
            pipe.execute()


def rewritten(client: redis.Redis) -> dict[str, Any]:
    """Rewrite the log, after a rewrite that is running; return INFO's figures afterwards."""
    begun, asked = client.info("persistence")["aof_rewrites"], False
    while True:
        told: dict[str, Any] = client.info("persistence")
        if not told["aof_rewrite_in_progress"]:
            if asked and told["aof_rewrites"] > begun:
                return told
            begun, asked = told["aof_rewrites"], True
            client.execute_command("BGREWRITEAOF")
        time.sleep(0.1)  # a server tells how a rewriting goes only when asked


def full_rate(client: redis.Redis, port: int, entries: int, rounds: int) -> None:
    """Print the log's size under writers at full rate."""
    streams = [f"s{number}" for number in range(STREAMS)]
    loaded(client, entries, streams)
    live = rewritten(client)["aof_base_size"]
    print(f"{entries} entries in {STREAMS} streams, a snapshot of them {live / 1e6:.1f} MB")
    client.config_set("auto-aof-rewrite-min-size", "1mb")
    client.config_set("auto-aof-rewrite-percentage", 50)
    extra = "|".join(word for pair in fields(123456).items() for word in pair)
    length = str(entries // STREAMS)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(port), name, length, extra], stderr=subprocess.DEVNULL)
        for name in streams
    ]
    begun, added = time.monotonic(), adds(client, streams)
    try:
        largest, took, first = watched(client, rounds)
        seconds, written = time.monotonic() - begun, adds(client, streams) - added
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    live = rewritten(client)["aof_base_size"]
    print(f"{written / seconds:,.0f} entries/s of {len(writers)} writers for {seconds:.0f} s, {rounds} rewritings")
    print(f"a rewriting took {', '.join(f'{value:.1f}' for value in took)} s, the first begun after {first:.1f} s")
    print(f"the log at its largest {largest / 1e6:.1f} MB, a fresh snapshot {live / 1e6:.1f} MB: {largest / live:.2f}")


def adds(client: redis.Redis, streams: list[str]) -> int:
    """Return the number of entries ever added."""
    return sum(int(client.xinfo_stream(name)["entries-added"]) for name in streams)


def watched(client: redis.Redis, rounds: int) -> tuple[int, list[float], float]:
    """Watch so many rewrites; return the log's peak size, the seconds of each, and those before the first."""
    largest, took, begun, first, since = 0, [], time.monotonic(), 0.0, None
    while len(took) < rounds:
        told = client.info("persistence")
        largest = max(largest, told["aof_current_size"])
        if told["aof_rewrite_in_progress"] and since is None:
            since = time.monotonic()
            first = first or since - begun
        elif not told["aof_rewrite_in_progress"] and since is not None:
            took.append(time.monotonic() - since)
            since = None
        time.sleep(0.05)  # the size is sampled twenty times a second
    return largest, took, first


def rewriting(folder: str, port: int, entries: int) -> None:
    """Print the reply times during a rewrite, and the time of a restart."""
    process, _ = start(folder, port)
    try:
        client = redis.Redis(port=port)
        loaded(client, entries, ["s"])
        size = client.info("persistence")["aof_current_size"]
        print(f"{entries} entries, log {size / 1e6:.1f} MB, server {memory(process, 'VmRSS')} MiB")
        print("quiet      count p50 p99 p99.9 max (ms)\n" + probed(port, 5))
        client.execute_command("BGREWRITEAOF")
        print("rewriting  count p50 p99 p99.9 max (ms)\n" + probed(port, 1))
        told = client.info("persistence")
        seconds, size = told["aof_last_rewrite_time_sec"], told["aof_current_size"]
        print(f"{told['aof_last_bgrewrite_status']} in {seconds} s, log {size / 1e6:.1f} MB")
        process.kill()
        process.wait()
        process, seconds = start(folder, port)
        peak, now = memory(process, "VmHWM"), memory(process, "VmRSS")
        print(f"restart in {seconds:.1f} s, {redis.Redis(port=port).xlen('s')} entries, {now} MiB, at most {peak}")
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--full-rate", type=int, metavar="N", help="writers at full rate, until so many rewritings")
    options = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        if not options.full_rate:
            rewriting(folder, port, options.entries)
            return
        process, _ = start(folder, port)
        try:
            full_rate(redis.Redis(port=port), port, options.entries, options.full_rate)
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
