"""How long replies take while a large log is rewritten, how large the log grows, and how long a restart takes.

A server with the default durability gets entries of five fields in one stream. A process of its own then asks PING and
XADD in turn, one by one, first with nothing else going on, then while the whole log is rewritten. At last the server is
killed and started again.

    .venv/bin/python bench/rewrite.py --entries 1000000
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def fields(number: int) -> dict[str, str]:
    """Five fields, about 90 bytes of names and values."""
    return {
        "sensor": f"temp-{number % 1000}",
        "place": "hall-7",
        "value": str(number),
        "unit": "celsius",
        "note": "all is well here",
    }


def memory(process: "subprocess.Popen[bytes]", word: str) -> int:
    """MiB of a process as the system counts them: ``VmRSS`` now, ``VmHWM`` at most."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(word)) // 1024


def start(folder: str, port: int) -> tuple["subprocess.Popen[bytes]", float]:
    """A server on the folder, and the seconds until it was ready."""
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
    """What the probe printed: a line a command with count, p50, p99, p99.9 and the longest, in milliseconds."""
    found = subprocess.run([sys.executable, "-c", PROBE, str(port), str(seconds)], capture_output=True, check=True)
    return found.stdout.decode()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    options = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process, _ = start(folder, port)
        try:
            client = redis.Redis(port=port)
            for first in range(0, options.entries, BATCH):
                with client.pipeline(transaction=False) as pipe:
                    for number in range(first, min(first + BATCH, options.entries)):
                        pipe.xadd("s", fields(number))
                    pipe.execute()
            size = client.info("persistence")["aof_current_size"]
            print(f"{options.entries} entries, log {size / 1e6:.1f} MB, server {memory(process, 'VmRSS')} MiB")
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


if __name__ == "__main__":
    main()
