"""Words that contain a NUL, compared with a running redis-server, which compares options as C strings up to the NUL."""

from typing import Any

import pytest

from conformance.pipe import Pipe
from millstream.replies import Error
from support.inprocess import Client, World, to_words
from support.servers import ServerProcess

SETUP = (
    "FLUSHALL",
    "XADD s 5-5 a 1",
    "XADD s 6-0 a 1",
    "XADD s 7-0 a 1",
    "XGROUP CREATE s g 0",
    "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
    "SET k 10",
    "ZADD z 1 a 2 b",
    "HSET h a 1 b 2",
)
LINES = (
    "XADD s NOMKSTREAM MAXLEN ~ 5 LIMIT 10 9-1 f v",
    "XADD s MAXLEN = 2 9-1 f v",
    "XADD s MINID = 2 9-1 f v",
    "XADD s 9-* f v",
    "XTRIM s MAXLEN ~ 2 LIMIT 10",
    "XTRIM s MINID = 6",
    "XREAD COUNT 2 STREAMS s $",
    "XREAD STREAMS s 5-5",
    "XREADGROUP GROUP g c COUNT 1 NOACK STREAMS s >",
    "XREADGROUP GROUP g c COUNT 1 STREAMS s 0",
    "XRANGE s - + COUNT 1",
    "XRANGE s (5 +",
    "XREVRANGE s + - COUNT 1",
    "XGROUP CREATE s n $ MKSTREAM ENTRIESREAD 2",
    "XGROUP SETID s g $ ENTRIESREAD 2",
    "XPENDING s g IDLE 0 - + 10",
    "XPENDING s g - + 10 c",
    "XCLAIM s g d 0 5-5 IDLE 5 TIME 10 RETRYCOUNT 3 FORCE JUSTID LASTID 6",
    "XCLAIM s g d 0 5-5 IDLE 5 RETRYCOUNT 3 FORCE JUSTID LASTID 6",
    "XAUTOCLAIM s g d 0 - COUNT 1 JUSTID",
    "XSETID s 9-9 ENTRIESADDED 10 MAXDELETEDID 3",
    "SET k v NX GET EX 10",
    "SET k v PXAT 99999999999999",
    "GETEX k PERSIST",
    "GETEX k EX 10",
    "GETEX k PXAT 99999999999999",
    "EXPIRE k 10 NX",
    "PEXPIRE k 10000 GT",
    "COPY k k2 DB 0 REPLACE",
    "SCAN 0 MATCH s* COUNT 100 TYPE stream",
    "FLUSHALL SYNC",
    "CLIENT NO-EVICT OFF",
    "CLIENT KILL ID 99999 SKIPME yes",
    "CLIENT KILL TYPE pubsub",
    "CLIENT LIST TYPE pubsub",
    "CLIENT LIST ID 999999",
    "CLIENT UNBLOCK 9999 ERROR",
    "CLIENT TRACKING OFF BCAST",
    "CLIENT CACHING YES",
    "SCRIPT FLUSH SYNC",
    "FUNCTION FLUSH ASYNC",
    "COMMAND LIST FILTERBY PATTERN xad*",
    "COMMAND LIST FILTERBY MODULE abc",
    "COMMAND GETKEYS XREAD COUNT 2 STREAMS a b 0 0",
    "COMMAND GETKEYS SET a b GET",
    "ACL LOG RESET",
    "ACL LOG 0",
    "ACL SETUSER u on >pw ~a* &b* +get -@all +@read %R~x resetkeys resetpass nopass (+get)",
    "CONFIG RESETSTAT",
    "ZADD z XX GT CH 1 a",
    "ZADD z NX INCR 1 a",
    "ZADD z inf a",
    "ZRANGE z 0 -1 REV WITHSCORES",
    "ZRANGE z -inf +inf BYSCORE LIMIT 0 1 WITHSCORES",
    "ZRANGEBYSCORE z (0 inf WITHSCORES LIMIT 0 1",
    "ZINCRBY z 1 a",
    "ZRANK z a",
    "ZPOPMIN z 1",
    "HSCAN h 0 MATCH a* COUNT 10",
    "HINCRBY h a 1",
    "INCRBY k 1",
    "INCRBYFLOAT k 1.5",
    "SETRANGE k 1 a",
    "GETRANGE k 0 -1",
    "EVAL return(1) 0",
    "RPUSH l a",
    "LINSERT l BEFORE a b",
    "LMOVE l l LEFT RIGHT",
    "LMPOP 1 l LEFT COUNT 1",
    "LPOS l a RANK 1 COUNT 0 MAXLEN 2",
    "SINTERCARD 1 s2 LIMIT 1",
    "ZUNION 1 z WEIGHTS 2 AGGREGATE MAX WITHSCORES",
    "ZRANGESTORE d z - + BYLEX REV LIMIT 0 1",
    "ZLEXCOUNT z [a (b",
    "ZMPOP 1 z MIN COUNT 1",
    "BITFIELD k OVERFLOW SAT INCRBY u8 #0 5 GET i8 0 SET u4 1 3",
    "BITPOS k 1 0 -1 BIT",
    "BITOP AND d k k",
    "SETBIT k 7 1",
    "GEOADD g NX CH 1 2 a",
    "GEODIST z a b km",
    "SORT l BY nosort LIMIT 0 1 GET # ALPHA DESC STORE d",
    "SORT_RO l BY w* GET h->a",
    "HINCRBYFLOAT h a 1.5",
    "LRANGE l 0 -1",
    "EXPIREAT k 99999999999",
    "EVAL return(1) 1 k",
    "COMMAND LIST FILTERBY ACLCAT nosuch",
)
# Redis finds subcommands in a hash table by a hash of all bytes and a comparison of C strings: with a NUL it is luck
CONTAINERS = {"XGROUP", "CLIENT", "COMMAND", "ACL", "SCRIPT", "FUNCTION", "OBJECT", "CONFIG"}


def with_nul(line: str) -> list[list[bytes]]:
    """Return the line with a NUL after each of its words in turn, with and without more bytes after it."""
    words = line.split()
    first = 2 if words[0] in CONTAINERS else 1
    # Redis compares a name up to its NUL but hashes all of it, by a seed of its own: it finds a command by chance
    first += words[:2] == ["COMMAND", "GETKEYS"]
    made = []
    for at in range(first, len(words)):
        for tail in (b"\0", b"\0z"):
            changed = to_words(words)
            changed[at] += tail
            made.append(changed)
    return made


def comparable(reply: Any) -> Any:
    """Return a reply without the idle times of XPENDING, and with keys in order."""
    if not isinstance(reply, list):
        return reply
    if len(reply) == 4 and isinstance(reply[2], int):
        return [*reply[:2], reply[3]]
    items = [comparable(item) for item in reply]
    return sorted(items, key=repr) if all(isinstance(item, bytes) for item in items) else items


@pytest.mark.realserver
@pytest.mark.parametrize("line", LINES)
def test_a_word_ends_at_its_nul_where_it_does_in_redis(each_redis: ServerProcess, line: str) -> None:
    """Options, signs and ids end at a NUL, as in Redis; names, values and whole numbers do not."""
    pipe = Pipe(each_redis.port)
    setup = [to_words(each.split()) for each in SETUP]
    try:
        for words in with_nul(line):
            client = World(logged=False).client()
            for each in setup:
                client.call(*each)
            wanted = comparable(pipe.ask([*setup, words])[-1])
            assert comparable(client.call(*words)) == wanted, words
    finally:
        pipe.close()


@pytest.fixture
def client() -> Client:
    return World(logged=False).client()


def test_cursors_and_types_of_scan_as_redis_8_reads_them(client: Client) -> None:
    """SCAN refuses invalid cursors and unknown types as Redis 8 does; 7.0 accepted them."""
    bad = Error("ERR invalid cursor")
    for word in ("", "-1", "-0", "+", "x", "0 ", "18446744073709551616"):
        assert client.call("SCAN", word) == (bad if word != "-0" else [b"0", []])
        assert client.call("HSCAN", "none", word) == (bad if word != "-0" else [b"0", []])
    for word in ("+0", " 0", "00", b"0\0z"):
        assert client.call("SCAN", word) == [b"0", []]
    assert client.call("SCAN", 0, "TYPE", b"Stream\0z") == [b"0", []]
    assert client.call("SCAN", 0, "TYPE", b"streams\0z") == Error("ERR unknown type name 'streams'")


def test_names_end_at_their_nul_where_they_are_shown(client: Client) -> None:
    """A client's name may have any bytes after a NUL, as since Redis 7.2. CLIENT LIST shows the part before it."""
    client.call("CLIENT", "SETNAME", b"me\0 x")
    assert client.call("CLIENT", "GETNAME") == b"me\0 x"
    info = client.call("CLIENT", "INFO")
    assert isinstance(info, bytes)
    assert b" name=me age=" in info
