"""The first line of a script, ``#!lua flags=...``, is parsed as by a running redis-server."""

import pytest

from conformance.pipe import Pipe
from support.inprocess import World
from support.servers import ServerProcess

HEADS = (
    b"#!lua",
    b"#!lua ",
    b"#!",
    b"#! lua",
    b"#!LUA",
    b"#!python flags=x",
    b"#!lua\tflags=no-writes",
    b"#!lua\vflags=no-writes",
    b"#!lua\x1cflags=no-writes",
    b"#!lua\xc2\x85flags=no-writes",
    b"#!lua  flags=no-writes,allow-stale \r",
    b"#!lua flags=",
    b"#!lua flags=,",
    b"#!lua flags=no-writes,",
    b"#!lua flags=,no-writes",
    b"#!lua flags=no-writes,,allow-oom",
    b"#!lua flags=no-writes flags=bogus",
    b"#!lua flags=x,y,no-writes",
    b"#!lua flags=bogus other",
    b"#!lua other flags=bogus",
    b"#!lua flags=NO-WRITES",
    b"#!lua flags=\xff",
    b"#!lua flags=no-writes\0x",
    b"#!lua\0",
    b'#!"lua" "flags=no-writes"',
    b"#!lua flags='no-writes'",
    b"#!lua flags='no\\'writes'",
    b'#!lua flags="no\\x2dwrites"',
    b'#!lua flags="a\\tb\\q"',
    b'#!lua flags=""',
    b"#!lua ''",
    b'#!lua flags="no-writes',
    b'#!lua flags="no-writes"x',
    b"#!lua 'flags=\\'",
    b'#!lua"\\x00x"',
    b'#!lua "flags=no-writes\\x00x"',
    b'#!lua "flags=no-writes\\x00x,bogus\\x00x"',
    b'#!lua "other\\x00x"',
)


@pytest.mark.realserver
@pytest.mark.parametrize("head", HEADS)
def test_the_first_line_is_read_as_redis_reads_it(each_redis: ServerProcess, head: bytes) -> None:
    """First lines with quotes, empty flags, other spaces, NUL or no end get the same replies as in Redis."""
    client = World().client()
    write = b"redis.call('set', KEYS[1], 1) return 1"
    lines = [[b"EVAL", head + b"\n" + write, b"1", b"k"], [b"EVAL_RO", head + b"\nreturn 1", b"0"]]
    lines += [[b"EVAL", head, b"0"], [b"SCRIPT", b"LOAD", head + b"\n" + write]]
    pipe = Pipe(each_redis.port)
    try:
        theirs = pipe.ask(lines)
    finally:
        pipe.close()
    assert [str(client.call(*line)) for line in lines] == [str(reply) for reply in theirs]
