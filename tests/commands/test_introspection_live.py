"""COMMAND INFO, GETKEYS, GETKEYSANDFLAGS and LIST reply as a running redis-server. Clients depend on them."""

import socket
from collections.abc import Iterator

import pytest

from conformance.pipe import Pipe
from millstream.commands.table.hints import KEY_NOTES, UNPLACED
from millstream.commands.table.table import every
from millstream.replies import Error
from support.inprocess import World, to_words
from support.resp import Pairs
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

NAMES = [row.name for row in every()]
FIELDS = ("name", "arity", "flags", "first", "last", "step", "categories", "tips", "specs")

# (command, field) that 7.0 tells otherwise than 7.2 and later
CHANGED = {
    ("blpop", "flags"): "noscript until 7.0: scripts may call them since, and do not wait",
    ("brpop", "flags"): "the same",
    ("sinterstore", "specs"): "told to read what it overwrites until 7.0",
    ("blmove", "flags"): "the same",
    ("brpoplpush", "flags"): "the same",
    ("bzpopmin", "flags"): "the same",
    ("bzpopmax", "flags"): "the same",
    ("msetnx", "tips"): "told to proxies until 7.0",
    ("wait", "flags"): "noscript until 7.0, blocking since",
    ("wait", "categories"): "the same",
    ("zrank", "arity"): "WITHSCORE came with 7.2",
    ("zrevrank", "arity"): "the same",
    ("command|getkeys", "arity"): "-4 until 7.0 by mistake",
    ("command|getkeysandflags", "arity"): "the same",
    ("client|setname", "tips"): "told to proxies since 7.2",
    ("acl|setuser", "tips"): "the same",
    ("acl|deluser", "tips"): "the same",
    ("acl|save", "tips"): "the same",
    ("config|resetstat", "tips"): "the same",
    ("config|rewrite", "tips"): "the same",
    ("scan", "tips"): "the same",
    ("randomkey", "tips"): "the same",
    ("subscribe", "flags"): "denyoom since 8.8: a listener takes memory",
    ("psubscribe", "flags"): "the same",
    ("eval", "flags"): "script_runner since 8.10",
    ("eval_ro", "flags"): "the same",
    ("evalsha", "flags"): "the same",
    ("evalsha_ro", "flags"): "the same",
}

# Redis 8.0.2 of Debian, with its security fixes, finds the keys of XREAD by its own parser and no longer by the word
# STREAMS alone; ours are those of the versions before, and refuse nothing that is run.
SHIFTING = (8, 0)


def is_shifted(line: str) -> bool:
    """Return True if the options before STREAMS decide the positions of the keys."""
    return line.upper().startswith("XREAD")


LINES = (
    "XREADGROUP GROUP g c STREAMS a b >",
    "XREADGROUP GROUP g c STREAMS a b > >",
    "XREADGROUP GROUP streams c STREAMS a 0",
    "XREAD STREAMS a b 0",
    "XREAD STREAMS a",
    "XREAD COUNT 1 STREAMS a b 0 0",
    "XREAD foo a b",
    "XREAD foo STREAMS a 0",
    "XREAD COUNT STREAMS a 0 0",
    "XREAD STREAMS a b c",
    "XREAD COUNT 1 STREAMS a",
    "XREAD NOACK a b STREAMS",
    "XREADGROUP GROUP g c BLOCK STREAMS a 0",
    "XREADGROUP GROUP g c STREAMS a b",
    "SET a b",
    "SET a b GET",
    "GET a",
    "PING x",
    "EVAL x 2 a b",
    "EVAL x 0",
    "EVAL x -1 a",
    "EVAL x 5 a",
    "EVAL_RO x 1 a",
    "MSET a b c d",
    "MSET a b c",
    "RENAME a b",
    "COPY a b DB 1",
    "XINFO STREAM k",
    "XINFO k",
    "BLPOP a b 0",
    "OBJECT ENCODING a",
    "DEL a b",
    "XGROUP CREATE s g 0",
    "RESTORE a 0 x",
    "XADD k",
    "WATCH a b",
    "PUBLISH a b",
    "NOSUCH a",
    "GETEX a",
    "XADD s * f v",
    "XAUTOCLAIM s g c 0 0",
    "ZPOPMIN z",
    "LMOVE a b LEFT RIGHT",
    "BLMOVE a b LEFT RIGHT 0",
    "LMPOP 2 a b LEFT",
    "LMPOP 0 a LEFT",
    "LMPOP 5 a LEFT",
    "BLMPOP 0 2 a b LEFT",
    "BZMPOP 0 x a MIN",
    "SMOVE a b c",
    "SUNIONSTORE d a b",
    "SINTERCARD 2 a b LIMIT 1",
    "ZUNIONSTORE d 2 a b WEIGHTS 1 2",
    "ZUNIONSTORE d 3 a b",
    "ZUNIONSTORE d 0 a",
    "ZUNION 2 a b",
    "ZDIFF 1 a WITHSCORES",
    "ZRANGESTORE d a 0 1",
    "BITOP AND d a b",
    "BITFIELD a GET u8 0",
    "BITFIELD a SET u8 0 1",
    "BITFIELD a",
    "BITFIELD_RO a GET u8 0",
    "SORT a",
    "SORT a STORE b",
    "SORT a STORE b STORE c",
    "SORT a BY STORE LIMIT 0 STORE STORE d",
    "SORT a GET STORE b",
    "SORT a LIMIT 0",
    "SORT a STORE",
    "SORT_RO a GET #",
    "GEOADD a 1 1 m",
)


@pytest.fixture(params=[2, 3])
def resp(request: pytest.FixtureRequest) -> int:
    """Version of the protocol, 2 or 3."""
    version: int = request.param
    return version


@pytest.fixture
def pipe(each_redis: ServerProcess, resp: int) -> Iterator[Pipe]:
    """Open a connection to redis-server."""
    pipe = Pipe(each_redis.port)
    pipe.ask([[b"HELLO", b"%d" % resp]])
    yield pipe
    pipe.close()


def without_notes(name: str, specs: object) -> object:
    """Return key specifications without their notes, which are our own text."""
    assert isinstance(specs, list)
    bare = []
    for spec in specs:
        has_notes = spec[0][0] == b"notes" if isinstance(spec, Pairs) else spec[0] == b"notes"
        bare.append(spec if not has_notes else spec[1:] if isinstance(spec, Pairs) else spec[2:])
    assert (bare != specs) == (name in KEY_NOTES or name in UNPLACED or "incomplete" in str(specs))
    return bare


def test_commands_are_described_as_redis_describes_them(pipe: Pipe, resp: int) -> None:
    """COMMAND INFO has Redis's arity, flags, keys, categories, tips and key specifications, in the same order."""
    client = World().client(resp)
    theirs = pipe.ask([[b"COMMAND", b"INFO", name.encode()] for name in NAMES])
    compared, differing = 0, []
    for name, reply in zip(NAMES, theirs, strict=True):
        (ours,) = client.call("COMMAND", "INFO", name)
        (wanted,) = reply
        if wanted is None:  # newer than this server
            continue
        compared += 1
        for at, field in enumerate(FIELDS):
            got, told = ours[at], wanted[at]
            if field == "specs":
                got, told = without_notes(name, got), without_notes(name, told)
            if name in {"xread", "xreadgroup"} and field == "specs" and b"incomplete" in str(told).encode():
                continue  # see SHIFTING
            if got != told and (name, field) not in CHANGED:
                differing.append(f"{name} {field}\n  redis: {told}\n  here:  {got}")
    assert not differing, "\n".join(differing)
    assert compared > 150


def raw(client_words: list[bytes], port: int, resp: int) -> bytes:
    """Return one reply of redis-server, undecoded."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
        data = b""
        for words in ([b"HELLO", b"%d" % resp], client_words):
            wire.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
            wire.sendall(b"PING\r\n")
            data = b""
            while not data.endswith(b"+PONG\r\n"):
                data += wire.recv(65536)
    return data.removesuffix(b"+PONG\r\n")


@pytest.mark.parametrize(
    "name", ["get", "mget", "xadd", "xreadgroup", "lastsave", "rename", "evalsha", "object|encoding"]
)
def test_descriptions_are_equal_to_the_byte(each_redis: ServerProcess, resp: int, name: str) -> None:
    """COMMAND INFO's reply equals that of Redis to the byte, with its arrays, sets and maps, in both protocols."""
    world = World()
    client = world.client(resp)
    words = [b"COMMAND", b"INFO", name.encode()]
    outcome = world.node.execute(client.session, words, world.clock.now())
    assert outcome is not None
    ours, theirs = b"".join(map(bytes, outcome.buffers)), raw(words, each_redis.port, resp)
    newer = b"+script_runner\r\n"  # a flag of 8.10
    if newer in ours:
        ours = ours.replace(newer, b"").replace(*((b"~6", b"~5") if resp == 3 else (b"*6", b"*5")), 1)
    note = b"$5\r\nnotes\r\n"
    if note in theirs:
        ours, theirs = ours.partition(b"$5\r\nflags")[2], theirs.partition(b"$5\r\nflags")[2]
    if name == "xreadgroup" and each_redis.release() >= SHIFTING:
        theirs = theirs.replace(b"+incomplete\r\n", b"").replace(*((b"~3", b"~2") if resp == 3 else (b"*3", b"*2")), 1)
    assert ours == theirs


def test_keys_are_found_where_redis_finds_them(pipe: Pipe, each_redis: ServerProcess, resp: int) -> None:
    """GETKEYS and GETKEYSANDFLAGS find Redis's keys, also in lines that the command itself would refuse."""
    client, release = World().client(resp), each_redis.release()
    for name in ("GETKEYS", "GETKEYSANDFLAGS"):
        for line in LINES:
            words = to_words(["COMMAND", name, *line.split()])
            if len(words) > 3:
                ours, theirs = client.call(*words), pipe.ask([words])[0]
                if isinstance(theirs, Error) and is_shifted(line) and release >= SHIFTING:
                    continue
                assert ours == theirs, line


def test_lists_of_commands_are_filtered_alike(pipe: Pipe, resp: int) -> None:
    """COMMAND LIST filters by pattern and by category as Redis does, over the commands that both servers have."""
    client = World().client(resp)
    both = set(map(str.encode, NAMES)) & set(pipe.ask([to_words(["COMMAND", "LIST", "FILTERBY", "PATTERN", "*"])])[0])
    assert len(both) > 150
    for line in ("PATTERN x*", "PATTERN XGROUP*", "PATTERN nothing", "ACLCAT stream", "ACLCAT STREAM", "ACLCAT nosuch"):
        words = to_words(["COMMAND", "LIST", "FILTERBY", *line.split()])
        ours, theirs = client.call(*words), pipe.ask([words])[0]
        assert set(ours) & both == set(theirs) & both, line
    everything, theirs = client.call("COMMAND", "LIST"), pipe.ask([to_words(["COMMAND", "LIST"])])[0]
    assert set(everything) & both == set(theirs) & both
    assert b"xinfo|stream" in everything
    for line in ("FILTERBY", "FILTERBY BAD x", "FILTERBY MODULE none", "FILTERBY PATTERN x y", "BAD ACLCAT stream"):
        words = to_words(["COMMAND", "LIST", *line.split()])
        ours, theirs = client.call(*words), pipe.ask([words])[0]
        assert ours == theirs, line
