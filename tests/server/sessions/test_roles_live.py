"""A primary with a replica and waiting clients: real servers in threads."""

import pytest

from millstream.server.thread import ServerThread
from support.waiting import eventually
from support.wire import Wire


@pytest.mark.parametrize(
    "words",
    [
        "BLPOP k 0",
        "BLMOVE k l LEFT LEFT 0",
        "BZMPOP 0 1 k MIN",
        "XREAD BLOCK 0 STREAMS s $",
        "XREADGROUP GROUP g c BLOCK 0 STREAMS s >",
        "WAIT 1 0",
    ],
)
def test_replicaof_closes_who_waits(words: str) -> None:
    """REPLICAOF ends a blocked command with UNBLOCKED and closes its connection, as Redis does."""
    with ServerThread() as server, Wire(server.url) as waiting, Wire(server.url) as other:
        other.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        waiting.send(*words.split())
        eventually(lambda: "blocked_clients:1\r" in other.ask("INFO", "clients").decode(), what="it waits")
        other.ask("REPLICAOF", "127.0.0.1", 1)
        assert str(waiting.read()).startswith("UNBLOCKED ")
        assert waiting.is_closed()


@pytest.mark.parametrize(
    "words",
    [
        ("LMOVE", "k", "k", "LEFT", "RIGHT"),
        ("LMOVE", "k", "k", "LEFT", "LEFT"),
        ("RPOPLPUSH", "k", "k"),
        ("BLMOVE", "k", "k", "RIGHT", "LEFT", 1),
        ("BRPOPLPUSH", "k", "k", 1),
    ],
)
def test_a_list_moved_onto_itself_keeps_its_time(words: tuple[str | int, ...]) -> None:
    """On a replica a list of one element that is moved onto itself keeps its time to live."""
    with ServerThread() as server, ServerThread() as copy, Wire(server.url) as one, Wire(copy.url) as other:
        other.ask("REPLICAOF", *server.url.removeprefix("redis://").split("/")[0].split(":"))
        one.ask("RPUSH", "k", "a")
        one.ask("PEXPIREAT", "k", 4_000_000_000_000)
        eventually(lambda: other.ask("PEXPIRETIME", "k") == 4_000_000_000_000, what="the copy has it")
        assert one.ask(*words) == b"a"
        one.ask("SET", "then", 1)
        eventually(lambda: other.ask("EXISTS", "then") == 1, what="the copy has what follows")
        assert other.ask("PEXPIRETIME", "k") == 4_000_000_000_000
        assert other.ask("LRANGE", "k", 0, -1) == [b"a"]
