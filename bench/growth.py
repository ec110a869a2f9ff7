"""Cost of a command by the size of the data: one row per command, one column per size, in milliseconds.

    python bench/growth.py [--sizes 1000,10000,100000] [--only XCLAIM] [--rounds 3]

Every command except those in the second table touches about ten things, so its row should stay level. Those of the
second touch everything, so a row grows tenfold from column to column. The node runs in this process without a log: no
socket and no disk is in the figures. Each is the best of some rounds.
"""

import argparse
import gc
import time

from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.node.node import Node

TOUCHING_FEW = """
XPENDING s g
XPENDING s g mid + 10
XPENDING s g IDLE 0 mid + 10 a
XINFO STREAM s FULL
XINFO CONSUMERS s g
XRANGE s mid + COUNT 10
XREVRANGE s + - COUNT 10
XREADGROUP GROUP g a COUNT 10 STREAMS s mid
XREADGROUP GROUP g b COUNT 10 CLAIM 0 STREAMS s >
XREADGROUP GROUP fresh b COUNT 10 STREAMS s >
XAUTOCLAIM s g b 0 mid COUNT 10
XCLAIM s g b 0 ids
XCLAIM s g b 0 ids IDLE 100000
XCLAIM s g b 0 ids TIME 1 FORCE
XNACK s g FAIL IDS 10 ids
XACK s g ids
XACKDEL s g DELREF IDS 10 ids
XDELEX s ACKED IDS 10 ids
XDEL s ids
XTRIM s MAXLEN less
XTRIM s MAXLEN ~ less ACKED
XADD s MAXLEN ~ 1000000000 ACKED * f v
XADD s IDMP p m * f v
XGROUP CREATE s new $
XGROUP DELCONSUMER s g idle
XGROUP DESTROY s g
UNLINK s
SWAPDB 0 1
SCAN 0 COUNT 10
RANDOMKEY
DBSIZE
GET k:1
HGET h mid
HSET h new v
HSCAN h 0 COUNT 10
SADD t new
SREM t mid
ZADD z 0.5 new
ZADD z 7 mid
ZRANK z mid
ZRANGE z 10 20
ZRANGEBYSCORE z 10 20
ZCOUNT z 10 20
ZREM z mid
ZPOPMIN z
LPUSH l v
LPOP l
RPUSH l v
RPOP l
LRANGE l 0 10
LRANGE l 10 20
""".strip().splitlines()

TOUCHING_ALL = """
XPENDING s g - + 1000000
XPENDING s g IDLE 99999999 - + 10
XINFO STREAM s FULL COUNT 0
XREADGROUP GROUP g a STREAMS s 0
XREADGROUP GROUP g b CLAIM 0 STREAMS s >
XREADGROUP GROUP fresh b STREAMS s >
XAUTOCLAIM s g b 0 - COUNT 1000000
XAUTOCLAIM s g b 0 - COUNT 1000000 JUSTID
XGROUP DELCONSUMER s g a
XTRIM s MAXLEN 10
XTRIM s MAXLEN 10 DELREF
XTRIM s MAXLEN 10 ACKED
XRANGE s - +
XREVRANGE s + -
COPY s s2
DUMP s
KEYS *
KEYS *9*
FLUSHALL
HGETALL h
SMEMBERS t
ZRANGE z 0 -1
""".strip().splitlines()


class Filled:
    """A node with ``size`` entries, all pending in one group, ``size`` keys, and collections of ``size`` members."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.clock = ManualClock()
        self.node = Node(Config(), None)
        self.session = self.node.sessions.open(self.clock.now())
        for number in range(1, size + 1):
            self.run("XADD", "s", f"{number}-1", "f", "v")
        self.run("XGROUP", "CREATE", "s", "g", "0")
        self.run("XGROUP", "CREATE", "s", "fresh", "0")
        self.run("XGROUP", "CREATECONSUMER", "s", "g", "idle")
        for _ in range(100):
            self.clock.advance(10)
            self.run("XREADGROUP", "GROUP", "g", "a", "COUNT", str(size // 100), "STREAMS", "s", ">")
        names = [str(number) for number in range(size)]
        for start in range(0, size, 1000):
            part = names[start : start + 1000]
            self.run("MSET", *[word for name in part for word in (f"k:{name}", "v")])
            self.run("HSET", "h", *[word for name in part for word in (name, "v")])
            self.run("SADD", "t", *part)
            self.run("ZADD", "z", *[word for name in part for word in (name, name)])
            self.run("RPUSH", "l", *part)

    def run(self, *words: str) -> float:
        """Run one command and return its time in milliseconds."""
        argv = [word.encode() for word in words]
        started = time.perf_counter()
        outcome = self.node.execute(self.session, argv, self.clock.now())
        took = (time.perf_counter() - started) * 1000
        assert outcome is not None
        assert not bytes(outcome.buffers[0]).startswith(b"-"), (words[:3], outcome)
        return took

    def words(self, line: str) -> list[str]:
        """Return the words of a line with its placeholders filled in."""
        middle = self.size // 2
        found: list[str] = []
        for word in line.split():
            if word == "ids":
                found += [f"{number}-1" for number in range(middle, middle + 10)]
            elif word == "mid":
                found.append(f"{middle}-0" if line[0] == "X" else str(middle))
            else:
                found.append(str(self.size - 10) if word == "less" else word)
        return found


# These change the state: the next line gets a new node
SPOILING = ("XGROUP DESTROY", "XGROUP DELCONSUMER s g a", "UNLINK", "SWAPDB", "XTRIM s MAXLEN 10", "FLUSHALL")


def measure(lines: list[str], size: int) -> list[float]:
    """Return the milliseconds of each line, run one after the other."""
    found: list[float] = []
    filled: Filled | None = None
    for line in lines:
        filled = filled or Filled(size)
        gc.collect()
        found.append(filled.run(*filled.words(line)))
        if line.startswith(SPOILING):
            filled = None
    return found


def table(lines: list[str], sizes: list[int], rounds: int) -> None:
    """Print each line at each size."""
    columns = [
        [min(times) for times in zip(*(measure(lines, size) for _ in range(rounds)), strict=True)] for size in sizes
    ]
    print(f"{'command':48}" + "".join(f"{size:>12,}" for size in sizes))
    for line, times in zip(lines, zip(*columns, strict=True), strict=True):
        print(f"{line:48}" + "".join(f"{milliseconds:12.3f}" for milliseconds in times))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--only", default="", help="lines that contain this")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    for lines in (TOUCHING_FEW, TOUCHING_ALL):
        chosen = [line for line in lines if options.only in line]
        if chosen:
            table(chosen, sizes, options.rounds)
            print()


if __name__ == "__main__":
    main()
