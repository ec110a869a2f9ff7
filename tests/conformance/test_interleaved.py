"""Random steps of five connections at once to Millstream and to redis-server: the replies of each, and all data.

After each step the replies on every connection are compared, and the connections that wait or were closed. Every
hundred commands the whole state of three databases is compared: keys, types, expiries, contents, encodings, XINFO FULL.

``allowed.KNOWN`` is the list of allowed differences, beside that of ``test_live.py``. Some cannot be hidden in a reply:

* DUMP is left out, since Millstream's payload has its own format.
* SORT of a sorted set makes its encoding ``skiplist`` in Redis, though it only reads. One run of three sorts, and does
  not compare the encodings of sorted sets.
* Before 7.2 a waiting command looks at its keys in another order, so it waits for one key there. Scripts call no
  command that waits, and no entry is trimmed as it is added. An XREAD that wakes for an entry deleted meanwhile, with
  an empty list, ends the run there.
* :meth:`Play.may_send` has those of pauses.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conformance.allowed import QUEUED, Json, comparable
from conformance.conversations import SOON, Words, Writer
from conformance.stage import CLOSED, WAITS, Server, pass_by
from support import campaign
from support.needs import other, program
from support.servers import ServerProcess, millstream_server, redis_server

pytestmark = pytest.mark.realserver

LINES = 5
RUN = 500
"""Commands of one run."""
LOOK = 100
"""Commands between two comparisons of the whole state."""
DATABASES = 3
FIRST_SEED = int(os.environ.get("MILLSTREAM_SEED", "1"))


@dataclass
class Seat:
    """The state of a connection, the same on both servers.

    Attributes:
        words: Commands whose replies are outstanding.
        queue: Queue of its transaction; None outside one.
        muted: True if it has switched replies off.
        dies: True if a queued or blocked command lets a key expire soon.
    """

    words: list[list[bytes]] = field(default_factory=list)
    queue: list[list[bytes]] | None = None
    muted: bool = False
    dies: bool = False


class Play:
    """One run on both servers.

    Args:
        theirs: A redis-server.
        ours: A Millstream server.
        seed: Seed of the steps.
        release: Release of the redis-server.
    """

    def __init__(self, theirs: ServerProcess, ours: ServerProcess, seed: int, release: tuple[int, ...]) -> None:
        self.seed, self.release = seed, release
        self.servers = [Server(each.url, LINES) for each in (theirs, ours)]
        self.sorts = seed % 3 == 0
        self.mortal = seed % 2 == 0
        self.writer = Writer(seed, LINES, sorts=self.sorts, many=release >= (7, 2))
        self.rng = self.writer.rng
        self.seats = [Seat() for _ in range(LINES)]
        self.waiting: list[int] = []
        self.told: list[str] = []
        self.count = 0
        self.may_pause = False
        for server in self.servers:
            server.control.ask("FLUSHALL")
            server.control.ask("DEBUG", "SET-ACTIVE-EXPIRE", "0")

    def run(self) -> int:
        """Run all steps and return the number of commands.

        Raises:
            AssertionError: The servers differ.
        """
        looked = 0
        try:
            while self.count < RUN:
                self.step()
                if self.count >= looked + LOOK:
                    looked = self.count
                    self.look()
            self.free(LINES)
            self.look()
        except Forked:
            pass
        finally:
            for server in self.servers:
                server.close()
        return self.count

    def step(self) -> None:
        """Send one command on a connection that does not wait."""
        self.free(2)
        at = self.rng.choice([at for at in range(LINES) if at not in self.waiting])
        seat, words = self.seats[at], self.writer.words()
        while not self.may_send(seat, words):
            words = self.writer.words()
        commands, wanted = self.wrapped(seat, words)
        self.count += len(commands)
        self.may_pause = self.may_pause or words[:2] == ["CLIENT", "PAUSE"]
        self.told.append(f"{at}: {' | '.join(' '.join(each) for each in commands)}")
        seat.dies = seat.dies or dies(words)
        for server in self.servers:
            server.send(at, commands, wanted)
        for server in self.servers:
            server.settle(at, ends_soon=ends_soon(words))
        self.compare(at)
        if words[:2] == ["CLIENT", "KILL"]:
            self.bury()
        self.serve()
        held = words[:2] == ["CLIENT", "UNPAUSE"]
        if any(each.dies and (held or self.is_done(at)) for at, each in enumerate(self.seats)):
            pass_by(int(SOON) + 3)
            for at, each in enumerate(self.seats):
                each.dies = each.dies and not self.is_done(at)

    def is_done(self, at: int) -> bool:
        """Return True if no command of a connection is queued or blocked."""
        return self.seats[at].queue is None and at not in self.waiting

    def may_send(self, seat: Seat, words: Words) -> bool:
        """Return False for commands whose effects cannot be compared.

        That is replies switched off in a transaction, short waits that a pause makes longer, and UNBLOCK of a paused
        client, by which Redis 8.0 crashes. It crashes too when a transaction pauses and then writes an expired key.
        So keys
        expire in one run, and transactions pause in the next; not before 7.2, which never wakes the clients that wait
        for them.
        """
        is_reply = words[:2] == ["CLIENT", "REPLY"]
        is_pause = words[:2] == ["CLIENT", "PAUSE"]
        if is_pause and seat.queue is not None and (self.mortal or self.release < (7, 2)):
            return False
        if dies(words) and not self.mortal:
            return False
        if self.may_pause and (ends_soon(words) or words[:2] == ["CLIENT", "UNBLOCK"]):
            return False
        if seat.queue is not None:
            return not is_reply and words[:2] != ["CLIENT", "UNBLOCK"]
        return not (
            seat.muted and (words[0] in {"MULTI", "RESET", "HELLO"} or words[:3] == ["CLIENT", "REPLY", "SKIP"])
        )

    def wrapped(self, seat: Seat, words: Words) -> tuple[list[Words], int]:
        """Return a command with a marker for its end, and the number of expected replies."""
        on, off = ["CLIENT", "REPLY", "ON"], ["CLIENT", "REPLY", "OFF"]
        if words == on:
            seat.muted = False
        elif words == off:
            seat.muted = True
            seat.words = [list(map(str.encode, on))]
            return [off, on, off], 1
        elif words == ["CLIENT", "REPLY", "SKIP"]:
            skipped = self.writer.words()
            while skipped[0] in {"CLIENT", "MULTI", "RESET", "HELLO"} or not self.may_send(seat, skipped):
                skipped = self.writer.words()
            seat.words = [[b"PING"]]
            seat.dies = seat.dies or dies(skipped)
            return [words, skipped, ["PING"]], 1
        elif seat.muted:
            seat.words = [list(map(str.encode, on))]
            return [words, on, off], 1
        seat.words = [list(map(str.encode, words))]
        return [words], 1

    def compare(self, at: int) -> None:
        """Compare the replies that a connection got from both servers, and return them."""
        seat = self.seats[at]
        theirs, ours = (server.heard(at) for server in self.servers)
        wanted, got = ([self.shown(seat, reply) for reply in replies] for replies in (theirs, ours))
        if self.release < (7, 2) and got == [WAITS] and is_woken_by_nothing(seat, wanted):
            raise Forked
        assert wanted == got, self.report(f"connection {at} after {differing(seat, wanted, got)}", wanted, got)
        self.told[-1] += f"   [{at} hears {wanted!r:.100}]"
        if WAITS in theirs:
            if at not in self.waiting:
                self.waiting.append(at)
            return
        if at in self.waiting:
            self.waiting.remove(at)
        if CLOSED in theirs:
            for server in self.servers:
                server.lines[at].socket.close()
                server.lines[at] = server.open()
            self.seats[at] = Seat()
            return
        self.follow(seat, wanted[-1])

    def comparable(self, words: list[bytes], reply: Any) -> Json:
        return comparable(words, reply, self.release, sorts=self.sorts)

    def shown(self, seat: Seat, reply: Any) -> Json:
        if isinstance(reply, str):
            return reply
        words = seat.words[0]
        if words[0].upper() == b"EXEC" and isinstance(reply, list) and seat.queue is not None:
            return [self.comparable(each, item) for each, item in zip(seat.queue, reply, strict=True)]
        return self.comparable(words, reply)

    def follow(self, seat: Seat, reply: Json) -> None:
        """Record a command's effect on its connection."""
        words = seat.words[0]
        if words == [b"MULTI"] and seat.queue is None:
            seat.queue = []
        elif words[0] in {b"EXEC", b"DISCARD", b"RESET"} and len(words) == 1:
            seat.queue = None
        elif seat.queue is not None and reply == QUEUED:
            seat.queue.append(words)

    def serve(self) -> None:
        """Read the replies of connections that waited and were served or closed."""
        while self.waiting:
            still = [server.waiting(self.waiting) for server in self.servers]
            served = [at for at in self.waiting if any(at not in each for each in still)]
            if not served:
                return
            for at in served:
                for server in self.servers:
                    server.settle(at)
                self.compare(at)
            if all(at in self.waiting for at in served):
                return

    def bury(self) -> None:
        """Read the replies of connections that were closed."""
        for at in range(LINES):
            if at not in self.waiting and all(server.is_gone(at) for server in self.servers):
                self.compare(at)

    def free(self, count: int) -> None:
        """Free the given number of connections by ending pauses and waits."""
        while LINES - len(self.waiting) < count:
            at = self.waiting[0]
            self.told.append(f"unpause and unblock {at}")
            unpause = ["CLIENT", "UNPAUSE"]  # more than one, since a released EXEC may pause again
            for words in (*[unpause] * LINES, ["CLIENT", "UNBLOCK", f"{{{at}}}"]):
                told = [server.ask(words) for server in self.servers]
                assert told[0] == told[1], self.report(" ".join(words), *told)
                self.serve()
            self.may_pause = any(
                words[:2] == [b"CLIENT", b"PAUSE"] for seat in self.seats for words in seat.queue or ()
            )
            if any(seat.dies for seat in self.seats):
                pass_by(int(SOON) + 3)

    def look(self) -> None:
        """Compare the whole state."""
        for db in range(DATABASES):
            theirs, ours = (dict(self.state(server, db)) for server in self.servers)
            for key in sorted({*theirs, *ours}):
                assert theirs.get(key) == ours.get(key), self.report(f"{key!r} of {db}", theirs.get(key), ours.get(key))

    def state(self, server: Server, db: int) -> Iterator[tuple[bytes, Json]]:
        """Yield each key of a database with all that clients can see of it."""
        control = server.control
        control.ask("SELECT", db)
        for key in control.ask("KEYS", "*"):
            kind, dies_at = control.ask_together([("TYPE", key), ("PEXPIRETIME", key)])
            if kind == b"none":
                continue
            seen: list[Json] = [kind, dies_at]
            looks = CONTENTS[kind](key)
            if not (kind == b"zset" and self.sorts):
                looks.append([b"OBJECT", b"ENCODING", key])
            seen += [comparable(words, control.ask_exact(*words), self.release, sorts=self.sorts) for words in looks]
            yield key, seen

    def report(self, what: str, theirs: Json, ours: Json) -> str:
        steps = "\n  ".join(self.told[-25:])
        return f"seed {self.seed}: {what}\n  redis: {theirs!r:.600}\n  here:  {ours!r:.600}\nafter\n  {steps}"


class Forked(Exception):  # noqa: N818 - no error
    """Error for servers whose states differ for a reason that the module's text names."""


def is_woken_by_nothing(seat: Seat, heard: list[Json]) -> bool:
    """Return True if XREAD replied with streams without entries."""
    rows = heard[0]["%"] if isinstance(heard[0], dict) and "%" in heard[0] else heard[0]
    return seat.words[0][0] == b"XREAD" and isinstance(rows, list) and all(not row[1] for row in rows)


def differing(seat: Seat, theirs: list[Json], ours: list[Json]) -> Json:
    """Return the commands whose replies differ, those of a transaction with both replies."""
    if seat.queue and all(len(each) == 1 and isinstance(each[0], list) for each in (theirs, ours)):
        rows = zip(seat.queue, theirs[0], ours[0], strict=False)
        return [row for row in rows if row[1] != row[2]]
    return seat.words


CONTENTS: dict[bytes, Callable[[bytes], list[list[bytes]]]] = {
    b"string": lambda key: [[b"GET", key]],
    b"list": lambda key: [[b"LRANGE", key, b"0", b"-1"]],
    b"set": lambda key: [[b"SMEMBERS", key]],
    b"hash": lambda key: [[b"HGETALL", key]],
    b"zset": lambda key: [[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]],
    b"stream": lambda key: [[b"XRANGE", key, b"-", b"+"], [b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"]],
}


def dies(words: Words) -> bool:
    """Return True if a command lets a key expire soon."""
    return (SOON in words[2:] and ("PX" in words or words[0] == "PEXPIRE")) or any("psetex" in word for word in words)


def ends_soon(words: Words) -> bool:
    """Return True if a command waits for a moment only, as FLUSHDB does in Redis 8; nothing is sent meanwhile."""
    return words[0] in {"WAIT", "FLUSHDB"} or "0.01" in words or ("BLOCK" in words and "10" in words)


@pytest.fixture(params=["native", "python"])
def ours(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """Yield a Millstream server with one of the cores."""
    monkeypatch.setenv("MILLSTREAM_CORE", request.param)
    with millstream_server(tmp_path / "ours", "--memory", "--set", "enable-debug-command=local") as server:
        yield server


@pytest.fixture(params=["redis", "redis8"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a redis-server that allows DEBUG."""
    path = other(request.param) if request.param == "redis8" else program("redis-server")
    with redis_server(tmp_path / "theirs", "--enable-debug-command", "local", path=path) as server:
        yield server


def test_five_connections_hear_what_redis_tells_them(theirs: ServerProcess, ours: ServerProcess) -> None:
    """For 500 commands of five concurrent connections, replies and data equal those of redis-server."""
    assert Play(theirs, ours, FIRST_SEED, theirs.release()).run() >= RUN


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_five_connections_hear_it_in_very_many_runs(
    theirs: ServerProcess, ours: ServerProcess, request: pytest.FixtureRequest
) -> None:
    """For half a million commands of five concurrent connections, replies and data equal redis-server's."""
    core, release = request.node.callspec.params["ours"], theirs.release()

    def piece(first: int) -> int:
        return sum(Play(theirs, ours, seed, release).run() for seed in range(first * 10, first * 10 + 10))

    campaign.run(f"interleaved-{core}-{release[0]}", piece, range(100, 125), unit="commands")


def test_the_steps_reach_everything() -> None:
    """The generated steps contain each kind of command."""
    names = Counter[str]()
    for seed in range(3):
        writer = Writer(seed, LINES)
        names.update(" ".join(words[: 1 + (words[0] == "CLIENT")]) for words in (writer.words() for _ in range(4000)))
    assert len(names) > 120
    assert {"CLIENT KILL", "CLIENT PAUSE", "CLIENT REPLY", "CLIENT UNBLOCK", "EVAL_RO", "BLPOP", "WAIT", "SWAPDB"} < {
        *names
    }
