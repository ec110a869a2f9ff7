"""Numbers as clients write them, in each command that reads one: the replies of a running Redis 8."""

from itertools import product

import pytest

from conformance.pipe import Pipe
from support.inprocess import World
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

NUMBER_TEXT = (
    "0 -0 +5 .5 5. 1e3 1e 0x10 -0x.8 0X1P-2 0x 0x1p 0x1g 0x0 -0x0 0x1p9999 0x1p-9999 1e400 -1e400 1e-400 2e-324 5e-324 "
    "0e99999 0x0p99999 1e-310 1e308 1e5000 1e-5000 inf -inf +infinity infin nan -nan 1_0 0x1_0"
)
NUMBERS = (*NUMBER_TEXT.split(" "), "", " 1", "1 ", " 0x1", "1\0")
LONG = "x" * 70  # too long for a listpack
FIRST = ("ZADD zeros -0 a 0 b 1 c", "ZADD long 0 a 1 LONG")
FORM_TEXT = """
    ZADD z {} m; ZADD z INCR {} n; ZADD z {} LONG; ZINCRBY z {} m; ZSCORE z m; ZRANGE z 0 -1 WITHSCORES
    ZADD new -0 a {} b 1 LONG -0 c; ZMSCORE new a b c; DEL new; ZADD small {} m; ZSCORE small m; DEL small
    ZUNION 1 z WEIGHTS {} WITHSCORES; ZUNIONSTORE u 1 z WEIGHTS {}; ZRANGE u 0 -1 WITHSCORES; DEL z
    ZUNIONSTORE u 1 zeros WEIGHTS {}; ZRANGE u 0 -1 WITHSCORES; ZUNIONSTORE u 1 long WEIGHTS {}; ZSCORE u a
    ZCOUNT zeros {} (1; ZRANGE zeros ({} 5 BYSCORE; GEOADD g {} {} m; GEOPOS g m; DEL g
    SET f 1; INCRBYFLOAT f {}; HINCRBYFLOAT h f {}; DEL h; DEL s; RPUSH s {} 3; SORT s
    RPUSH full x x; BLPOP full {}; BLMPOP {} 1 full LEFT; ZADD busy 1 a 2 b; BZPOPMIN busy {}; BZMPOP {} 1 busy MIN
"""
FORMS = [form for line in FORM_TEXT.strip().splitlines() for form in line.split(";")]


def _words(form: str, number: str = "") -> list[bytes]:
    """Return the words of a form. It is split before the number is put in, since a number may contain blanks."""
    return [word.replace("LONG", LONG).replace("{}", number).encode() for word in form.split()]


def test_numbers_are_read_as_redis_reads_them(redis8_process: ServerProcess) -> None:
    """Scores and weights may be hexadecimal and must fit a double, timeouts a long double. Bounds are decimal."""
    lines = [*map(_words, FIRST), *(_words(form, number) for number, form in product(NUMBERS, FORMS))]
    client = World(logged=False).client()
    pipe = Pipe(redis8_process.as_new().port)
    try:
        theirs = pipe.ask(lines)
    finally:
        pipe.close()
    differing = [
        f"{line}\n  redis: {wanted!r}\n  here:  {found!r}"
        for line, wanted in zip(lines, theirs, strict=True)
        if (found := client.call(*line)) != wanted
    ]
    assert not differing, "\n".join(differing[:5])


@pytest.mark.parametrize("many", [100, 130])
def test_a_listpack_keeps_no_negative_zero(redis8_process: ServerProcess, many: int) -> None:
    """A small sorted set stores -0 as 0, a large one keeps it.

    A ZADD of more than a listpack holds creates a large one.
    """
    pairs = [word for at in range(many) for word in (b"-0", b"m%d" % at)]
    lines = [[b"ZADD", b"z", *pairs], [b"ZADD", b"z", b"-0", b"last"], [b"ZRANGE", b"z", b"0", b"-1", b"WITHSCORES"]]
    client = World(logged=False).client()
    pipe = Pipe(redis8_process.as_new().port)
    try:
        assert [client.call(*line) for line in lines] == pipe.ask(lines)
    finally:
        pipe.close()


DATABASES = [str(sign * 2**power + off) for sign in (1, -1) for power in (31, 32, 63, 64) for off in (-1, 0, 1)]


@pytest.mark.parametrize("form", ["SELECT {}", "MOVE k {}", "COPY k copy DB {}", "SWAPDB {} 0", "SWAPDB 0 {}"])
def test_a_database_that_no_int_holds_has_an_error_of_its_own(redis8_process: ServerProcess, form: str) -> None:
    """A database number that does not fit a C int has an error of its own, as in Redis."""
    lines = [[b"SET", b"k", b"v"], *(_words(form, number) for number in (*DATABASES, "-1", "16", "x", ""))]
    client = World(logged=False).client()
    pipe = Pipe(redis8_process.as_new().port)
    try:
        theirs = pipe.ask(lines)
    finally:
        pipe.close()
    assert [client.call(*line) for line in lines] == theirs
