"""While the disk refuses writes: the refused commands, the reads without unwritten changes, and the time after."""

import random

import pytest

from millstream.commands.table.spec import Command
from millstream.commands.table.table import every
from millstream.node.durability.outage import Outage
from millstream.node.log import codec
from millstream.replies import OK, Error
from support import campaign, needs
from support.inprocess import WAITING, Client, Word, World, to_words
from support.resp import decode

WHY = "No space left on device"
WRITES = (
    f"MISCONF Errors writing to the AOF file: {WHY}. Writes are refused and reads continue; when there is space again, "
    "writes are accepted without a restart"
)
HELD = (
    f"MISCONF Errors writing to the AOF file: {WHY}. This command reads keys with changes that wait for space on the "
    "disk. They can be read once these changes are written; other keys can be read now"
)


@pytest.fixture
def world() -> World:
    """Return a node with a stream s, its group g, and a string."""
    world = World()
    client = world.client()
    for line in ("XADD s 1-0 f v", "XGROUP CREATE s g 0", "SET word x"):
        client.call(*line.split())
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def hold(world: World, durable: int) -> None:
    """Refuse all records after ``durable``."""
    world.node.journal.suspend(Outage(WHY, world.log.payloads[durable:]))


def low(world: World) -> None:
    """Leave too little space, with nothing unwritten."""
    hold(world, world.log.appended)


def refused(answer: object, line: str = WRITES) -> bool:
    return isinstance(answer, Error) and answer.line == line


def test_a_pack_that_the_disk_did_not_take_hides_no_key(world: World, client: Client) -> None:
    """Records of packs and of entries that moved into them change no reply, so all keys can be read meanwhile."""
    record = codec.pack(0, [("tpacks", -1, [[1, 2, 0]]), ("twarm", 0, b"s", 0, 1)])
    world.node.journal.suspend(Outage(WHY, [record]))
    assert client.call("XLEN", "s") == 1
    assert refused(client.call("XADD", "s", "*", "f", "v"))


WRITING = [row for row in every() if "write" in row.flags and row.handler is not None]


@pytest.mark.parametrize("row", WRITING, ids=lambda row: row.name)
def test_every_writing_command_is_refused(world: World, client: Client, row: Command) -> None:
    """Every writing command is refused before its arguments are parsed, logs nothing and changes nothing."""
    low(world)
    words = [*row.name.split("|"), *["s"] * (abs(row.arity) - len(row.name.split("|")))]
    assert refused(client.call(*words))
    assert world.log.appended == 3
    world.node.journal.resume()
    assert not refused(world.client().send(*words))


def test_ping_is_refused_and_what_reads_is_not(world: World, client: Client) -> None:
    """PING is refused, as in Redis. Commands that read, administer or publish work."""
    listener = world.client()
    listener.call("SUBSCRIBE", "c")
    low(world)
    assert refused(client.call("PING"))
    assert client.call("GET", "word") == b"x"
    assert client.call("XLEN", "s") == 1
    assert client.call("DBSIZE") == 2
    assert client.call("CONFIG", "SET", "disk-free-floor", 0) == client.call("SELECT", 0)
    assert client.call("PUBLISH", "c", "hello") == 1
    assert len(listener.inbox) == 1


def test_held_changes_are_not_told_and_others_are_read_at_once(world: World, client: Client) -> None:
    """Reads of a key with unwritten changes are refused, as are reads of all keys. Other reads wait for no disk."""
    client.call("XADD", "s", "2-0", "f", "v")
    hold(world, 3)
    for line in ("XRANGE s - +", "XREAD STREAMS word s 0 0", "EXISTS word s", "XINFO STREAM s", "KEYS *", "SCAN 0"):
        assert refused(client.call(*line.split()), HELD), line
    for line in ("DBSIZE", "RANDOMKEY", "DEBUG RELOAD"):
        assert refused(client.call(*line.split()), HELD), line
    assert client.call("GET", "word") == b"x"
    assert client.barrier == 0
    info = client.call("INFO", "keyspace")
    assert client.barrier == 0
    assert isinstance(info, bytes)
    assert b"db0" not in info
    assert b"millstream_keyspace_held:1" in info
    world.node.journal.resume()
    assert client.call("XLEN", "s") == 2
    assert client.call("XADD", "s", "3-0", "f", "v") == b"3-0"
    assert client.barrier == 5


def test_sort_by_other_keys_may_tell_of_any(world: World, client: Client) -> None:
    """SORT_RO with patterns is refused while any change is unwritten, since the patterns may name any key."""
    client.call("RPUSH", "l", "rd")
    durable = world.log.appended
    client.call("SET", "word", "y")
    hold(world, durable)
    assert refused(client.call("SORT_RO", "l", "BY", "nosort", "GET", "wo*"), HELD)


def test_held_flush_and_swap_touch_every_key(world: World, client: Client) -> None:
    """An unwritten FLUSHDB or SWAPDB counts as a change of every key."""
    client.call("SWAPDB", 0, 1)
    hold(world, 3)
    assert refused(client.call("GET", "word"), HELD)
    assert refused(client.call("EXISTS", "never"), HELD)


def test_held_visit_of_a_consumer_hides_its_times_alone(world: World, client: Client) -> None:
    """An unwritten seen time of a consumer blocks only XINFO, which shows it."""
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    world.clock.advance(5)
    durable = world.log.appended
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert world.log.appended == durable + 1
    hold(world, durable)
    assert refused(client.call("XINFO", "CONSUMERS", "s", "g"), HELD)
    assert client.call("XLEN", "s") == 1
    assert client.barrier == 0


def test_transactions(world: World, client: Client) -> None:
    """A write in a transaction is refused when queued, or at EXEC if queued before. Nothing of it is done."""
    client.call("MULTI")
    client.call("GET", "word")
    client.call("SET", "word", "y")
    low(world)
    answer = client.call("EXEC")
    assert refused(answer, f"EXECABORT Transaction discarded because of: {WRITES}")
    client.call("MULTI")
    assert refused(client.call("SET", "word", "y"))
    answer = client.call("EXEC")
    assert refused(answer, "EXECABORT Transaction discarded because of previous errors.")
    client.call("MULTI")
    client.call("GET", "word")
    assert client.call("EXEC") == [b"x"]
    assert world.log.appended == 3


def test_broken_watch_is_not_told_while_what_broke_it_is_held(world: World, client: Client) -> None:
    """EXEC with a watch that an unwritten change broke is refused, since a null would reveal the change."""
    client.call("WATCH", "word")
    world.client().call("SET", "word", "y")
    hold(world, 3)
    client.call("MULTI")
    client.call("XLEN", "s")
    assert refused(client.call("EXEC"), f"EXECABORT Transaction discarded because of: {HELD}")


def test_scripts(world: World, client: Client) -> None:
    """A script is refused at its first write, or at its first read of an unwritten change, and has changed nothing."""
    needs.package("lupa")
    client.call("SET", "other", "1")
    hold(world, 3)
    answer = client.call("EVAL", "redis.call('SET', KEYS[1], 1); return 'no'", 1, "word")
    assert isinstance(answer, Error)
    assert answer.line.startswith(WRITES)
    answer = client.call("EVAL", "return redis.call('GET', KEYS[1])", 1, "other")
    assert isinstance(answer, Error)
    assert answer.line.startswith(HELD)
    assert client.call("EVAL", "return redis.call('GET', KEYS[1])", 1, "word") == b"x"
    assert client.barrier == 0
    assert world.log.appended == 4


def test_expired_keys_are_hidden_and_deleted_later(world: World, client: Client) -> None:
    """An expired key is hidden from readers and deleted once writes are possible, without tries meanwhile."""
    client.call("PEXPIRE", "word", 50)
    low(world)
    before = world.log.appended
    world.advance(1000)
    assert client.call("GET", "word") is None
    assert client.call("EXISTS", "word") == 0
    assert world.node.next_deadline(world.clock.now()) is None
    assert world.log.appended == before
    world.node.journal.resume()
    world.tick()
    assert world.log.appended == before + 1
    assert world.recovered().keyspace.databases[0].keys.keys() == {b"s"}


def test_waits_end_by_time_and_claims_wait_for_space(world: World, client: Client) -> None:
    """A timeout is reported at once. A claim that becomes due is a write, and waits until writes are possible."""
    client.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    claimer, reader = world.client(), world.client()
    words: list[Word] = ["XREADGROUP", "GROUP", "g", "b", "BLOCK", 0, "CLAIM", 100, "STREAMS", "s", ">"]
    assert claimer.send(*words) is WAITING
    assert reader.send("XREAD", "BLOCK", 50, "STREAMS", "word2", "$") is WAITING
    client.call("SET", "other", "1")
    hold(world, world.log.appended - 1)
    before = world.log.appended
    world.advance(1000)
    assert reader.inbox == [None]
    assert reader.barrier == 0
    assert claimer.inbox == []
    assert world.node.next_deadline(world.clock.now()) is None
    assert world.log.appended == before
    world.node.journal.resume()
    due = world.node.next_deadline(world.clock.now())
    assert due is not None
    world.tick()
    world.advance(10)
    assert len(claimer.inbox) == 1
    assert not claimer.waits


def test_claims_of_those_who_left_are_forgotten(world: World, client: Client) -> None:
    """A client that disconnected while its claim was due is skipped later."""
    client.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    claimer = world.client()
    claimer.send("XREADGROUP", "GROUP", "g", "b", "BLOCK", 0, "CLAIM", 100, "STREAMS", "s", ">")
    low(world)
    world.advance(1000)
    claimer.close()
    world.node.journal.resume()
    world.tick()
    assert claimer.inbox == []
    assert world.node.next_deadline(world.clock.now()) is None


KEYS = [f"k{number}" for number in range(6)]
CHANGES = [
    "XADD {a} * f v",
    "XADD {a} MAXLEN 3 * f v",
    "XGROUP CREATE {a} g 0 MKSTREAM",
    "XREADGROUP GROUP g c COUNT 2 STREAMS {a} >",
    "XREADGROUP GROUP g c STREAMS {a} {b} > >",
    "XAUTOCLAIM {a} g d 0 0",
    "XTRIM {a} MAXLEN 2",
    "DEL {a}",
    "SET {a} x",
    "MSET {a} x {b} y",
    "RENAME {a} {b}",
    "COPY {a} {b} REPLACE",
    "EXPIRE {a} 100",
    "LPUSH {a} x",
    "HSET {a} f v",
    "SADD {a} m",
    "ZADD {a} 1 m",
    *("LPUSH {a} 1 2", "LMOVE {a} {b} LEFT LEFT", "SMOVE {a} {b} m", "SORT {a} ALPHA STORE {b}"),
    *("SUNIONSTORE {a} {b}", "ZUNIONSTORE {a} 1 {b}", "BITOP NOT {a} {b}"),
    "FLUSHDB",
]
READS = [
    *("TYPE {a}", "EXISTS {a} {b}", "PTTL {a}", "GET {a}", "MGET {a} {b}", "STRLEN {a}", "OBJECT ENCODING {a}"),
    *("XLEN {a}", "XRANGE {a} - +", "XREVRANGE {a} + -", "XREAD STREAMS {a} {b} 0 0", "XPENDING {a} g"),
    *(
        "XINFO STREAM {a} FULL",
        "XINFO GROUPS {a}",
        "XINFO CONSUMERS {a} g",
        "MEMORY USAGE {a}",
        "LRANGE {a} 0 -1",
        "HGETALL {a}",
    ),
    *("SORT_RO {a} BY nosort GET k*", "SUNION {a} {b}", "ZUNION 2 {a} {b}", "ZINTERCARD 2 {a} {b}", "BITCOUNT {a}"),
    *(
        "SMEMBERS {a}",
        "ZRANGE {a} 0 -1",
        "KEYS *",
        "DBSIZE",
        "SCAN 0",
        "DUMP {a}",
        "EVAL_RO return{redis.call('GET',KEYS[1])} 1 {a}",
    ),
]


def nothing_is_told(seed: int) -> None:
    """After random changes, the last ones unwritten, check that each read is refused or shows only durable data."""
    chance = random.Random(seed)
    world = World()
    client = world.client()

    def line(form: str) -> list[Word]:
        a, b = chance.sample(KEYS, 2)
        return [word.replace("{a}", a).replace("{b}", b) for word in form.split()]

    for _ in range(chance.randint(5, 40)):
        client.send(*line(chance.choice(CHANGES[:-1] if chance.random() < 0.95 else CHANGES)))
        world.clock.advance(chance.choice((0, 1)))
    durable = max(0, world.log.appended - chance.randint(0, 4))
    twin = World()
    twin.clock = world.clock
    twin.node.recover(world.log.payloads[:durable])
    other = twin.client()
    hold(world, durable)
    answered = 0
    for form in READS * 3:
        words = line(form)
        answer = client.call(*words)
        if isinstance(answer, Error) and answer.line.startswith("MISCONF"):
            assert durable < len(world.log.payloads), f"{words} is refused, and nothing is held"
            continue
        assert client.barrier == 0 or durable == len(world.log.payloads)
        outcome = twin.node.execute(other.session, to_words(words), twin.clock.now())
        assert outcome is not None
        assert repr(answer) == repr(decode(b"".join(outcome.buffers))), words
        answered += 1
    assert answered or durable < len(world.log.payloads)


@pytest.mark.parametrize("seed", [*range(60), 1071])
def test_no_read_tells_of_what_is_held(seed: int) -> None:
    """Every kind of read is refused or equals that of a second node that has only the durable records."""
    nothing_is_told(seed)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_no_read_tells_of_what_is_held_at_length() -> None:
    """Many random cases: every read is refused or shows only durable data."""

    def hundred(seed: int) -> None:
        for each in range(100):
            nothing_is_told(seed * 100 + each)

    campaign.run("held", hundred, range(10, 210))


@pytest.mark.parametrize("is_early", [True, False])
def test_retention_makes_room_before_the_disk_is_full(is_early: bool) -> None:
    """Below the floor retention removes entries, since its records are small; on a full disk it does not."""
    world = World({"stream-node-max-entries": "10"})
    client = world.client()
    for number in range(1, 101):
        client.call("XADD", "s", f"{number}-0", "f", "v" * 50)
    client.call("SET", "old", "x", "PX", 1)
    world.node.journal.suspend(Outage(WHY, is_early=is_early))
    appended = world.log.appended
    assert client.call("CONFIG", "SET", "stream-retention", "* 0 1kb") == OK
    world.advance(2000)
    assert client.call("XLEN", "s") == (20 if is_early else 100)
    assert world.log.appended == appended + is_early
    assert refused(client.call("XTRIM", "s", "MAXLEN", 0))
    world.node.journal.resume()
    world.advance(2000)
    assert client.call("XLEN", "s") == 20
