"""SLOWLOG beside a running redis-server: the same commands, order, words and clients are kept.

Both servers keep every command (``slowlog-log-slower-than`` is 0). Durations and the client's port depend on the
moment and are left out. The commands that Millstream leaves out on purpose are in tests/commands/test_slowlog.py.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from millstream.server.thread import ServerThread
from support.servers import ServerProcess
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver

LONG = "XADD s 1-1 " + " ".join(["f", "v" * 127, "f", "v" * 128, "g" * 129, "g" * 1000])

CASES: dict[str, tuple[str, ...]] = {
    "plain ones and others": (
        "SET a b",
        "get a",
        "PING",
        "PING x",
        "XADD s 1-1 a b",
        "XLEN s",
        "XRANGE s - +",
        "TYPE a",
    ),
    "refused while they ran": ("LPUSH a x", "XADD s 0-0 a b", "EXPIRE a x", "XREADGROUP GROUP g c STREAMS a >"),
    "refused before": ("NOSUCH a", "GET", "GET a b", "XGROUP NOSUCH", "SET"),
    "long words": (LONG,),
    "32 words": ("DEL " + " ".join(map(str, range(31))),),
    "33 words": ("DEL " + " ".join(map(str, range(32))),),
    "33 plain words": ("XGROUP CREATE s g 0 MKSTREAM", "XACK s g " + " ".join(f"{at}-1" for at in range(30))),
    "passwords": (
        "AUTH x",
        "auth default x",
        "HELLO 2 AUTH default x",
        "HELLO 2 SETNAME n AUTH default p",
        "HELLO 2 AUTH u p",
    ),
    "users": ("ACL SETUSER bob on >x", "ACL SETUSER bob +nosuch", "ACL WHOAMI", "acl setuser bob reset"),
    "secret parameters": (
        "CONFIG SET requirepass x",
        "CONFIG SET REQUIREPASS x maxclients bad",
        "CONFIG SET nosuch x requirepass x",
        "CONFIG GET requirepass",
        "CONFIG SET acllog-max-len 128 requirepass x",
        "CONFIG SET requirepass",
    ),
    "a transaction": ("MULTI", "SET a b", "GET a", "LPUSH a x", "EXEC"),
    "transactions that fail": ("EXEC", "DISCARD", "MULTI", "NOSUCH", "EXEC", "MULTI", "MULTI", "DISCARD"),
    "rewritten for the log": ("SET a b EX 100", "GETEX a PERSIST", "INCRBYFLOAT n 1.5", "XADD s MAXLEN ~ 9 9-* a b"),
    "the list itself": (
        "SLOWLOG LEN",
        "slowlog get 0",
        "SLOWLOG GET -2",
        "SLOWLOG GET x",
        "SLOWLOG GET 1 2",
        "SLOWLOG",
    ),
    "words about the list": ("SLOWLOG LEN x", "SLOWLOG RESET x", "SLOWLOG NOSUCH", "SLOWLOG LEN"),
    "a name": ("CLIENT SETNAME me", "PING"),
}
SCRIPTS = (
    "redis.call('SET', 'a', 'b') redis.call('SELECT', 1) redis.pcall('LPUSH', 'a', 'x') return redis.call('GET', 'a')",
    "redis.pcall('NOSUCH') redis.pcall('GET') redis.pcall('AUTH', 'x') return 1",
    "for at = 1, 5 do redis.call('XADD', 's', at .. '-1', 'a', 'b') end redis.call('TYPE', 's')",
    "error('x')",
    "not lua (",
)
# (what is sent, what then ends the wait)
WAITS = (
    ("XREAD BLOCK 0 STREAMS s $", "XADD s 9-1 a b"),
    ("XREAD BLOCK 0 STREAMS s t $ $", "XADD t 9-1 a b"),
    ("XREADGROUP GROUP g c BLOCK 0 STREAMS s >", "XADD s 9-1 a b"),
    ("XREADGROUP GROUP g c BLOCK 0 STREAMS s >", "XGROUP DESTROY s g"),
    ("BLPOP l 0", "RPUSH l x"),
    ("BLPOP l 0", "CLIENT UNBLOCK {id}"),
    ("XREAD BLOCK 0 STREAMS s $", "CLIENT UNBLOCK {id} ERROR"),
    ("BLMOVE l m LEFT LEFT 0", "REPLICAOF 127.0.0.1 1"),
    ("XREAD BLOCK 10 STREAMS s $", "PING"),
    ("XREADGROUP GROUP g c BLOCK 10 STREAMS s >", "PING"),
    ("BLPOP l 0.01", "PING"),
    ("BZPOPMIN z 0.01", "PING"),
    ("WAIT 1 10", "PING"),
)
NOT_SERVED = ("CLIENT", "REPLICAOF", "PING")
AS_BEFORE = (
    "CONFIG SET requirepass ",
    "CONFIG SET slowlog-log-slower-than 10000 slowlog-max-len 128",
    "CONFIG RESETSTAT",
    "ACL DELUSER bob",
)
PARAMETERS = (
    ("slowlog-log-slower-than", ("-1", "0", "9223372036854775807", "-2", "x", "", "9223372036854775808", "10000")),
    ("slowlog-max-len", ("0", "2", "9223372036854775807", "-1", "x", "9223372036854775808", "128")),
)


class Client:
    """A server with an emptied slow log, and a connection to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.wire = Wire(url)
        for line in ("CONFIG SET slowlog-max-len 10000", "CONFIG SET slowlog-log-slower-than 0", "SLOWLOG RESET"):
            assert self.wire.ask(*line.split(" ")) == b"OK"
        self.known = {row[0] for row in self.wire.ask("SLOWLOG", "GET", -1)}

    def rows(self) -> list[Any]:
        """Return the commands kept since then, the latest first, without their durations and ports."""
        kept = self.wire.ask("SLOWLOG", "GET", -1)
        assert isinstance(kept, list), kept
        rows = [row for row in kept if row[0] not in self.known]
        assert rows.pop()[3] == [b"SLOWLOG", b"GET", b"-1"]
        assert all(after[0] == before[0] + 1 for after, before in pairwise(rows))
        assert all(isinstance(row[1], int) and isinstance(row[2], int) for row in rows)
        return [[row[3], row[4].rpartition(b":")[0], row[5]] for row in rows]


@pytest.fixture
def clients(each_redis: ServerProcess) -> Iterator[tuple[Client, Client]]:
    """Yield Redis, then Millstream, and restore Redis afterwards."""
    with ServerThread() as server:
        both = Client(each_redis.url), Client(server.url)
        try:
            yield both
        finally:
            for line in AS_BEFORE:
                both[0].wire.ask(*line.split(" "))
            for client in both:
                client.wire.socket.close()


@pytest.mark.parametrize("case", CASES)
def test_the_same_commands_are_kept(clients: tuple[Client, Client], case: str) -> None:
    """SLOWLOG keeps the same commands as Redis, with words cut in the same places and the same client."""
    lines = [line.split(" ") for line in CASES[case]]
    theirs, ours = (([client.wire.ask(*line) for line in lines], client.rows()) for client in clients)
    if "the list" in case:
        assert list(map(str, ours[0])) == list(map(str, theirs[0]))
    assert ours[1] == theirs[1]
    assert bool(ours[1]) == (case != "refused before")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_scripts_commands_are_kept_before_it(clients: tuple[Client, Client], script: str) -> None:
    """A script's commands are kept before the script, of a client without an address. Refused ones are not kept."""
    found = []
    for client in clients:
        client.wire.ask("EVAL", script, 0)
        found.append([[words, addr.removeprefix(b"?"), name] for words, addr, name in client.rows()])
    assert found[0] == found[1]
    assert found[0][0][0][0] == b"EVAL"


@pytest.mark.parametrize("words", WAITS)
def test_a_command_that_waited_is_kept_when_it_is_through(
    clients: tuple[Client, Client], each_redis: ServerProcess, words: tuple[str, str]
) -> None:
    """A blocked command is kept once, when it ends, in the client's own words, also after a timeout or UNBLOCK."""
    command, ending = words
    found = []
    for client in clients:
        for line in ("XGROUP CREATE s g $ MKSTREAM", "XGROUP CREATE t g $ MKSTREAM"):
            client.wire.ask(*line.split(" "))
        waiting = Wire(client.url)
        number = waiting.ask("CLIENT", "ID")
        waiting.send(*command.split(" "))
        if ending != "PING":
            eventually(
                lambda client=client: b"blocked_clients:1" in client.wire.ask("INFO", "clients"), what="it waits"
            )
            client.wire.ask(*ending.format(id=number).split(" "))
        waiting.read()
        waiting.socket.close()
        client.wire.ask("REPLICAOF", "NO", "ONE")
        # Redis 7 keeps an empty row for a wait that CLIENT UNBLOCK ended
        found.append([row for row in client.rows() if row[0][:1] not in ([], [b"INFO"], [b"REPLICAOF"], [b"CLIENT"])])
    if not ending.startswith(NOT_SERVED) or each_redis.release()[0] >= 8:
        assert found[0] == found[1]
    assert [row[0] for row in found[1]].count([word.encode() for word in command.split(" ")]) == 1


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_the_parameters_take_what_redis_takes(
    clients: tuple[Client, Client], parameter: tuple[str, tuple[str, ...]]
) -> None:
    """CONFIG SET accepts and refuses the same SLOWLOG parameters as Redis with the same errors."""
    name, values = parameter
    for value in values:
        theirs, ours = (
            (client.wire.ask("CONFIG", "SET", name, value), client.wire.ask("CONFIG", "GET", name))
            for client in clients
        )
        assert str(ours) == str(theirs), value


LIMIT = "CONFIG SET slowlog-log-slower-than"


@pytest.mark.parametrize(
    "lines",
    [
        (f"{LIMIT} 1000000", "PING", f"{LIMIT} 0", "PING"),
        (f"{LIMIT} -1", "PING", f"{LIMIT} 0"),
        (f"{LIMIT} 1000000 nosuch 1", "PING"),
        ("MULTI", "PING", f"{LIMIT} 1000000", "PING", f"{LIMIT} 0", "PING", "EXEC", "PING"),
    ],
)
def test_a_change_of_the_limit_counts_for_its_own_command(
    clients: tuple[Client, Client], lines: tuple[str, ...]
) -> None:
    """CONFIG SET of the limit is itself measured by the new value, as in Redis."""
    for client in clients:
        for line in lines:
            client.wire.ask(*line.split(" "))
        client.wire.ask(*f"{LIMIT} 0".split(" "))
    theirs, ours = (client.rows() for client in clients)
    assert ours == theirs


def test_a_shorter_list_forgets_the_oldest(clients: tuple[Client, Client], each_redis: ServerProcess) -> None:
    """A shorter SLOWLOG drops the oldest commands at the next kept one. Length 0 stops it and keeps its content."""
    found = []
    for client in clients:
        first = client.wire.ask("SLOWLOG", "GET", 1)[0][0]
        rows = []
        for line in ("PING", "CONFIG SET slowlog-max-len 2", "SLOWLOG LEN", "CONFIG SET slowlog-max-len 0", "PING"):
            client.wire.ask(*line.split(" "))
            rows.append(client.wire.ask("SLOWLOG", "LEN"))
        client.wire.ask("CONFIG", "SET", "slowlog-max-len", 3)
        rows += [[row[0] - first, row[3]] for row in client.wire.ask("SLOWLOG", "GET")]
        found.append(rows if each_redis.release()[0] >= 8 else rows[:3])
    assert found[0] == found[1][: len(found[0])]
