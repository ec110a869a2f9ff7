"""INFO and CLIENT LIST have true values for monitors: lookups, expiries, rates, scripts, and bytes.

The fields are those that redis_exporter, Datadog's check and RedisInsight read and that have a meaning here.
"""

import re
from collections.abc import Callable

import pytest

from conformance.pipe import Pipe
from millstream.server.figures.rates import WINDOW, Rates
from millstream.server.thread import ServerThread
from support.inprocess import World
from support.servers import ServerProcess
from support.wire import Wire

# Commands that look keys up, with some that find theirs and some that do not; run in this order on an empty database
LOOKUPS = (
    "SET s 1",
    "GET s",
    "GET no",
    "SETNX s 1",
    "GETSET s 2",
    "GETDEL no",
    "GETEX s",
    "MGET s no s",
    "STRLEN no",
    "GETRANGE s 0 1",
    "APPEND s x",
    "INCR n",
    "MSET a 1 b 2",
    "EXISTS s no s",
    "TYPE s",
    "TTL no",
    "PTTL s",
    "EXPIRE s 100",
    "PERSIST s",
    "TOUCH s no",
    "OBJECT ENCODING s",
    "DUMP s",
    "RENAME b c",
    "DEL c no",
    "KEYS *",
    "SCAN 0",
    "RANDOMKEY",
    "DBSIZE",
    "WATCH s no",
    "UNWATCH",
    "HSET h f 1",
    "HGET h f",
    "HGETALL no",
    "HINCRBY h f 1",
    "LPUSH l x",
    "LRANGE l 0 -1",
    "LLEN no",
    "LPOP l",
    "SADD m a",
    "SISMEMBER m a",
    "ZADD z 1 a",
    "ZSCORE z a",
    "ZRANGE no 0 -1",
    "XADD st 1-1 f v",
    "XADD no NOMKSTREAM * f v",
    "XLEN st",
    "XRANGE st - +",
    "XRANGE no - +",
    "XGROUP CREATE st g 0",
    "XPENDING st g",
    "XACK st g 1-1",
    "XACK no g 1-1",
    "XCLAIM st g c 0 1-1",
    "XAUTOCLAIM st g c 0 0",
    "XINFO GROUPS st",
    "XINFO STREAM no",
    "XTRIM st MAXLEN 9",
    "XDEL st 1-1",
    "EVAL return{redis.call('get','s'),redis.call('get','no')} 0",
    "GET st",
    "XLEN s",
)


def section(text: object) -> dict[str, str]:
    """Return INFO's fields."""
    assert isinstance(text, bytes)
    return dict(line.split(":", 1) for line in text.decode().split("\r\n") if ":" in line)


def lookups(ask: Callable[..., object]) -> tuple[int, int]:
    """Return the numbers of hits and misses."""
    told = section(ask("INFO", "stats"))
    return int(told["keyspace_hits"]), int(told["keyspace_misses"])


@pytest.mark.realserver
def test_hits_and_misses_are_counted_as_redis_counts_them(each_redis: ServerProcess) -> None:
    """Each of sixty commands, one after the other, adds to keyspace_hits and keyspace_misses what it adds in Redis."""
    pipe, client = Pipe(each_redis.port), World().client(2)

    def real(*words: str) -> object:
        return pipe.ask([[word.encode() for word in words]])[0]

    real("FLUSHALL")
    different = []
    for line in LOOKUPS:
        before = lookups(real), lookups(client.call)
        for ask in (real, client.call):
            ask(*line.split())
        after = lookups(real), lookups(client.call)
        theirs, ours = [(new[0] - old[0], new[1] - old[1]) for new, old in zip(after, before, strict=True)]
        if theirs != ours:
            different.append((line, theirs, ours))
    pipe.close()
    assert different == []


def test_a_key_is_counted_as_expired_once_whoever_finds_it() -> None:
    """expired_keys counts an expired key once, whoever deletes it, but no key that EXPIRE deletes at once."""
    world = World()
    client = world.client(2)

    def expired() -> int:
        return int(section(client.call("INFO", "stats"))["expired_keys"])

    client.call("SET", "asked", "x", "PX", 50)
    client.call("SET", "unasked", "x", "PX", 50)
    world.clock.advance(60)
    assert client.call("GET", "asked") is None
    assert expired() == 1
    world.advance(200)
    assert expired() == 2
    client.call("SET", "gone", "x")
    client.call("EXPIRE", "gone", -1)
    world.advance(200)
    assert expired() == 2
    client.call("CONFIG", "RESETSTAT")
    assert expired() == 0
    assert lookups(client.call) == (0, 0)


def test_rates_are_averages_of_the_last_moments() -> None:
    """A rate counts only work in its window, after an hour of silence too, and is never negative after a reset."""
    rates = Rates()
    rates.sample(1_000, (0, 0, 0))
    assert rates.per_second(1_100, (160, 320, 480)) == (100.0, 200.0, 300.0)
    rates.sample(1_200, (160, 320, 480))
    assert rates.per_second(1_100 + WINDOW, (320, 640, 960)) == (100.0, 200.0, 300.0)
    assert rates.per_second(1_200 + WINDOW, (320, 640, 960)) == (0.0, 0.0, 0.0)
    assert rates.per_second(3_600_000, (320, 640, 960)) == (0.0, 0.0, 0.0)
    rates.sample(3_600_000, (320, 640, 960))
    assert rates.per_second(3_600_010, (1, 650, 970)) == (0.0, 10 * 1000 / WINDOW, 10 * 1000 / WINDOW)


def test_a_steady_load_is_seen_whole() -> None:
    """A rate is right under a steady load, since one sample at the start of its window is always kept."""
    rates = Rates()
    for now in range(0, 60_000, 10):
        if now >= rates.due:
            rates.sample(now, (now, now, now))
    commands, _, _ = rates.per_second(60_000, (60_000, 60_000, 60_000))
    assert 900 <= commands <= 1_000


def test_a_server_tells_what_monitors_ask_for() -> None:
    """INFO has real values for rates, scripts and lookups."""
    with ServerThread() as server, Wire(server.url) as wire:
        for number in range(200):
            wire.ask("SET", f"k{number}", "x")
            wire.ask("GET", f"k{number}")
        wire.ask("EVAL", "return 1", "0")
        told = section(wire.ask("INFO"))
        assert (told["keyspace_hits"], told["keyspace_misses"]) == ("200", "0")
        assert int(told["instantaneous_ops_per_sec"]) > 0
        assert float(told["instantaneous_input_kbps"]) > 0
        assert float(told["instantaneous_output_kbps"]) > 0
        assert (told["number_of_cached_scripts"], told["used_memory_scripts_eval"]) == ("1", "8")
        assert int(told["used_memory_lua"]) > 10_000
        assert told["latest_fork_usec"] == told["number_of_functions"] == "0"
        wire.ask("SCRIPT", "FLUSH")
        told = section(wire.ask("INFO", "memory"))
        assert told["number_of_cached_scripts"] == told["used_memory_lua"] == "0"


def test_resetting_begins_every_count_anew() -> None:
    """CONFIG RESETSTAT sets the counts of bytes, refusals and lookups to zero as Redis does. Current values stay."""
    with ServerThread() as server, Wire(server.url) as wire:
        wire.ask("SET", "k", "x" * 100_000)
        wire.ask("GET", "k")
        before = section(wire.ask("INFO"))
        assert int(before["total_net_input_bytes"]) > 100_000
        wire.ask("CONFIG", "RESETSTAT")
        after = section(wire.ask("INFO"))
        counts = ("total_net_input_bytes", "total_net_output_bytes", "total_commands_processed", "keyspace_hits")
        assert all(int(after[name]) < 100 for name in counts)
        assert (after["connected_clients"], after["run_id"]) == ("1", before["run_id"])


def test_an_embedded_store_tells_no_rates() -> None:
    """INFO of an embedded store has no rates of input, which it does not measure."""
    assert "instantaneous_ops_per_sec" not in section(World().client(2).call("INFO", "stats"))


def test_a_connection_tells_its_bytes_and_commands() -> None:
    """CLIENT INFO has bytes both ways, commands and a descriptor, in Redis's order and with Redis's names."""
    with ServerThread() as server, Wire(server.url) as wire:

        def told() -> dict[str, str]:
            return dict(pair.split("=", 1) for pair in wire.ask("CLIENT", "INFO").decode().split())

        first = told()
        wire.ask("SET", "k", "x" * 1000)
        wire.ask("GET", "k")
        wire.ask("NOSUCH")
        second = told()
        assert int(second["tot-net-in"]) - int(first["tot-net-in"]) > 1000
        assert int(second["tot-net-out"]) - int(first["tot-net-out"]) > 1000
        assert int(second["tot-cmds"]) - int(first["tot-cmds"]) == 4
        assert int(second["read-events"]) > int(first["read-events"])
        assert int(first["fd"]) > 2
        assert (first["qbuf"], first["omem"], first["events"], first["io-thread"]) == ("0", "0", "r", "0")
        order = re.findall(r"(\S+)=", wire.ask("CLIENT", "INFO").decode())
    # The order of 8.8, without its buffers' sizes
    known = "id addr laddr fd name age idle flags db sub psub ssub multi watch qbuf omem tot-mem events cmd user redir "
    assert order == [
        *known.split(),
        *["resp", "lib-name", "lib-ver", "io-thread", "tot-net-in", "tot-net-out", "tot-cmds", "read-events"],
    ]
