"""Each version of Redis found here follows ours by its own commands, and ignores the annotations for our replicas."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream.server.thread import ServerThread
from replication.replicated import Changes, state
from replication.test_redis_follows import follow, follows, info, port_of
from support import needs
from support.servers import ServerProcess, redis_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver

# Facts that only their own clock forgets, and a setting of one server
_OWN = (b"IDMP-DURATION", b"CONFIG")
_MEMORY = (b"idmp-duration", b"idmp-maxsize", b"pids-tracked", b"iids-tracked", b"iids-added", b"iids-duplicates")


def write(wire: Wire, seed: int, count: int, *, newest: bool) -> None:
    """Write random commands, a few at a time."""
    since, chance = 1000 * int(wire.ask("TIME")[0]), random.Random(seed)
    commands = [
        words for words in Changes(seed, since, newest=newest).some(count) if not any(own in words for own in _OWN)
    ]
    while commands:
        wire.ask_together([commands.pop(0) for _ in range(min(len(commands), chance.choice([1, 7, 50])))])


def dialect_of(wire: Wire) -> str:
    """Return the newest dialect, the set of commands, that a server understands."""
    known = wire.ask("COMMAND", "INFO", "XDELEX", "XCFGSET", "XNACK")
    return ["7.0", "8.2", "8.6", "8.8"][sum(each is not None for each in known)]


@pytest.fixture(params=["redis", "redis8", "valkey"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield each other server found here, which is stopped after the test and leads until then."""
    path = "" if request.param == "redis" else needs.other(request.param)
    with redis_server(tmp_path / request.param, path=path) as server:
        yield server


@pytest.fixture
def redis8(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield the newest Redis found here, which is stopped after the test."""
    with redis_server(tmp_path / "redis8", path=needs.other("redis8")) as server:
        yield server


def shown(wire: Wire, dialect: str) -> Any:
    """Return the effects of random commands that a replica gets in the dialect."""
    values = state(wire.ask)
    if dialect == "7.0":  # it has no words for what of trimming was acknowledged, nor for messages
        for value in values.values():
            if isinstance(value[1], tuple):
                value[1][0].pop(b"max-deleted-entry-id")
    if dialect < "8.6":
        return values
    memory = {}
    for db, key in values:
        wire.ask("SELECT", str(db))
        if wire.ask("TYPE", key) == b"stream":
            flat = wire.ask("XINFO", "STREAM", key)
            told = dict(zip(flat[::2], flat[1::2], strict=True))
            memory[db, key] = {name: told[name] for name in _MEMORY}
    wire.ask("SELECT", "0")
    return values, memory


@pytest.mark.parametrize("annotate", ["lossy", "always"])
def test_a_foreign_replica_holds_what_its_dialect_can_say(
    foreign: ServerProcess, annotate: str, tmp_path: Path
) -> None:
    """A Redis replica has everything that its version can express, ignores annotations, and refuses no command."""
    with ExitStack() as stack:
        server = stack.enter_context(ServerThread(tmp_path / "ours"))
        ours, theirs = stack.enter_context(Wire(server.url)), stack.enter_context(Wire(foreign.url))
        dialect = dialect_of(theirs)
        ours.ask("CONFIG", "SET", "repl-dialect", dialect, "repl-annotate", annotate)
        write(ours, 1, 100, newest=dialect == "8.8")
        follow(theirs, port_of(server))
        eventually(lambda: follows(theirs, ours), what="the replica has its copy")
        for seed in (2, 3):
            write(ours, seed, 250, newest=dialect == "8.8")
            eventually(lambda: follows(theirs, ours), what="the replica has the rest")
            eventually(
                lambda: shown(theirs, dialect) == shown(ours, dialect), what="it has forgotten the same messages"
            )
        assert ours.ask("WAIT", 1, 30_000) == 1
        assert info(theirs, "stats")["unexpected_error_replies"] == "0"
        assert info(ours, "stats")["sync_full"] == "1"


def times(wire: Wire) -> list[Any]:
    """Return the seen and active times of each consumer."""
    streams = [wire.ask("XINFO", "STREAM", key, "FULL") for key in wire.ask("KEYS", "[stu]")]
    groups = [group for flat in streams for group in flat[flat.index(b"groups") + 1]]
    return sorted((consumer[1], consumer[3], consumer[5]) for group in groups for consumer in group[-1])


def test_messages_named_by_their_content_are_known_across_a_failover(redis8: ServerProcess, tmp_path: Path) -> None:
    """A producer's repeated message is a duplicate after failovers from a Redis to ours and back."""
    words = ["XADD", "s", "IDMPAUTO", "p", "*", "a", "1", "b", "2"]
    with ServerThread(tmp_path / "ours") as server, Wire(server.url) as ours, Wire(redis8.url) as theirs:
        if dialect_of(theirs) < "8.8":
            pytest.skip("it knows no messages")
        first = theirs.ask(*words)
        follow(ours, redis8.port)
        eventually(lambda: info(ours)["master_link_status"] == "up", what="ours follows")
        second = theirs.ask(*words[:-1], "3")
        eventually(lambda: follows(ours, theirs), what="ours has the rest")
        ours.ask("REPLICAOF", "NO", "ONE")
        assert [ours.ask(*words), ours.ask(*words[:-1], "3")] == [first, second]
        ours.ask("CONFIG", "SET", "repl-dialect", "8.8")
        follow(theirs, port_of(server))
        eventually(lambda: follows(theirs, ours), what="the Redis follows")
        third = ours.ask(*words[:-1], "4")
        eventually(lambda: follows(theirs, ours), what="the Redis has the rest")
        theirs.ask("REPLICAOF", "NO", "ONE")
        assert [theirs.ask(*words), theirs.ask(*words[:-1], "3"), theirs.ask(*words[:-1], "4")] == [
            first,
            second,
            third,
        ]


def test_ours_hold_the_same_behind_a_copy(tmp_path: Path) -> None:
    """A replica of ours gets the newest form of a copy, then annotations, while a Redis 7.0 gets the oldest."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerThread(tmp_path / name)) for name in ("one", "two")]
        one, two = (stack.enter_context(Wire(server.url)) for server in servers)
        redis = stack.enter_context(redis_server(tmp_path / "redis"))
        one.ask("CONFIG", "SET", "repl-annotate", "always")
        write(one, 5, 300, newest=True)
        with Wire(redis.url) as theirs:
            follow(theirs, port_of(servers[0]))
            follow(two, port_of(servers[0]))
            eventually(lambda: follows(two, one) and follows(theirs, one), what="both have their copies")
            write(one, 6, 300, newest=True)
            eventually(lambda: follows(two, one) and follows(theirs, one), what="both have the rest")
            assert shown(theirs, "7.0").keys() == shown(one, "7.0").keys()
        eventually(lambda: shown(two, "8.8") == shown(one, "8.8"), what="ours hold the same")
        seen = [times(wire) for wire in (one, two)]
        assert seen[0] == seen[1] != []
