"""Recovery: dead consumers' entries are settled once by the decision, despite kills and beside live consumers."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

from millstream import failpoints
from millstream.cli.main import main
from millstream.client.dead_letter.letter import unpack
from millstream.client.delays.due import key
from millstream.errors import ConfigError, UsageError
from millstream.spark import recover
from millstream.spark.connection.connection import BlockingConnection, pack
from millstream.spark.connection.router import Router
from millstream.spark.recovery import recover as recovery
from millstream.spark.recovery.recover import Recovery
from millstream.spark.recovery.settle import EntryDecision, RecoveryCounts
from millstream.spark.recovery.user_function import checked_decisions, load_function
from support.groupdriver import Drivers, verdict
from support.servers import ServerProcess, millstream_server, redis_server
from support.streams import fill
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

HOUR = 3_600_000


@pytest.fixture(scope="module", params=["redis", "millstream"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield a real Redis, then Millstream's server."""
    folder = tmp_path_factory.mktemp("recovery")
    with redis_server(folder) if request.param == "redis" else millstream_server(folder, "--memory") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of the emptied server."""
    with server.client() as made:
        made.flushall()
        yield made


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    """Yield a factory of recoveries that can be killed."""
    made = Drivers()
    yield made
    made.close()


def leave(client: redis.Redis, count: int, fresh: int = 0) -> list[bytes]:
    """Leave entries pending for an hour under two dead consumers, and ``fresh`` ones under a live one.

    Return the ids.
    """
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = [ident.encode() for ident in fill(client, "s", count + fresh)]
    for consumer, some in (("d1", count // 2), ("d2", count - count // 2), ("alive", fresh)):
        if some:
            client.xreadgroup("g", consumer, {"s": ">"}, count=some)
    for consumer, part in (("d1", ids[: count // 2]), ("d2", ids[count // 2 : count])):
        for at in range(0, len(part), 1000):
            client.xclaim("s", "g", consumer, 0, part[at : at + 1000], idle=HOUR, justid=True)
    return ids


def run(client: redis.Redis, *command: Any) -> Any:
    """Run a raw command."""
    return client.execute_command(*command)  # type: ignore[no-untyped-call]  # untyped in redis-py


def pending(client: redis.Redis) -> dict[bytes, tuple[bytes, int]]:
    """Return the consumer and the delivery count of every pending entry."""
    found: dict[bytes, tuple[bytes, int]] = {}
    start = "-"
    while rows := client.xpending_range("s", "g", start, "+", 10_000):
        found |= {row["message_id"]: (row["consumer"], row["times_delivered"]) for row in rows}
        start = "(" + rows[-1]["message_id"].decode()
    return found


def dead_ids(client: redis.Redis, key: str = "s:dead") -> list[str]:
    """Return the ids in the dead-letter stream, in the order of writing."""
    found = []
    start = "-"
    while rows := run(client, "XRANGE", key, start, "+", "COUNT", 10_000):
        for ident, fields in rows:
            flat = [word for pair in fields.items() for word in pair] if isinstance(fields, dict) else fields
            found.append(unpack(flat).id)
            start = "(" + ident.decode()
    return found


def as_decided(client: redis.Redis, ids: list[bytes], alive: int) -> None:
    """Assert that every entry is acknowledged, released or dead as decided, and that nothing else has changed."""
    by: dict[str, list[str]] = {"ack": [], "release": [], "dead": []}
    for ident in ids[: len(ids) - alive]:
        by[verdict(ident.decode())].append(ident.decode())
    assert sorted(dead_ids(client), key=lambda ident: int(ident[:-2])) == by["dead"]
    left = pending(client)
    assert {ident.decode() for ident in left} == {
        *by["release"],
        *(ident.decode() for ident in ids[len(ids) - alive :]),
    }
    released = set(by["release"])
    assert {held for ident, held in left.items() if ident.decode() in released} <= {(b"", 1)}
    assert {held for ident, held in left.items() if ident.decode() not in released} <= {(b"alive", 1)}
    assert not client.keys("millstream:*recover*")
    names = {row["name"] for row in client.xinfo_consumers("s", "g")}
    assert b"recover" not in names


# --- killed ----------------------------------------------------------------------------------------------------------

POINTS = ["sliced:1", "decided:2", "settling:1", "writing_dead:1", "settling:2", "writing_dead:9", "sliced:3"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_half_way_and_run_again_settles_each_entry_once(
    server: ServerProcess, client: redis.Redis, drivers: Drivers, point: str
) -> None:
    """A recovery killed at any step and run again settles each entry once."""
    ids = leave(client, 2400, fresh=50)
    given = {
        "url": server.url, "stream": "s", "group": "g", "min_idle": HOUR // 2, "name": "recover", "slice_size": 700,
        "dead": None,
    }  # fmt: skip
    assert drivers.recover(given, f"{point}=kill") == -signal.SIGKILL
    assert client.xpending("s", "g")["pending"] > len(ids) // 3 + 50, "the kill came too late to prove anything"
    assert drivers.recover(given) == 0
    as_decided(client, ids, 50)


@pytest.mark.long
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("count", [100_000, 1_000_000])
def test_many_entries_killed_half_way_through_spark(tmp_path: Path, count: int) -> None:
    """A recovery whose decision function runs in Spark's executors, killed and run again, settles each entry once."""
    with redis_server(tmp_path / "redis") as server, server.client() as client:
        ids = leave(client, count, fresh=50)
        words = [sys.executable, "-c", JUDGED_BY_SPARK, server.url]
        hook = {"MILLSTREAM_FAILPOINTS": f"settling:{count // 2000}=kill"}
        killed = subprocess.run(words, env=os.environ | hook, check=False)
        assert killed.returncode == -signal.SIGKILL
        left = client.xpending("s", "g")["pending"]
        assert count // 3 < left < count, "the kill did not come half way"
        subprocess.run(words, check=True)
        as_decided(client, ids, 50)


JUDGED_BY_SPARK = """
import sys

from pyspark.sql import functions as F

import millstream.spark


def triage(entries):
    number = F.substring_index("id", "-", 1).cast("bigint")
    words = F.array(F.lit("ack"), F.lit("release"), F.lit("dead"))
    return entries.select("id", words[(number % 3).cast("int")].alias("verdict"))


spark = millstream.spark.session("recover", quick=True, spark__log__level="OFF")
millstream.spark.recover(spark, sys.argv[1], "s", "g", "30m", triage, slice_size=20_000)
"""


# --- decided by a function --------------------------------------------------------------------------------------------


@pytest.mark.either_server
def test_a_function_over_a_dataframe_decides(server: ServerProcess, client: redis.Redis, spark: "SparkSession") -> None:
    """A function over a DataFrame decides. Entries it leaves out are released, and deleted ones are acknowledged."""
    ids = leave(client, 3000, fresh=10)
    client.xclaim("s", "g", "d1", 0, [ids[8]], idle=HOUR, retrycount=9, justid=True)
    client.xdel("s", *ids[100:103])
    sizes = []

    def triage(entries: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        assert entries.columns == ["stream", "id", "timestamp", "fields", "deliveries"]
        sizes.append(entries.count())
        number = entries.fields["n"].cast("int")
        word = F.when(entries.deliveries > 5, "dead").when(number % 2 == 0, "ack").when(number < 2000, "release")
        reason = F.concat(F.lit("delivered "), entries.deliveries, F.lit(" times"))
        return entries.where(number != 2999).select("id", word.alias("verdict"), reason.alias("reason"))

    told: list[tuple[int, int]] = []
    found = recover(
        spark, server.url, "s", "g", "30m", triage, slice_size=2000, progress=lambda *at: told.append(at), dead="morgue"
    )
    # 1500 even ones less a deleted one, 1000 odd ones below 2000 less the dead one and two deleted ones.
    assert [int(ident[:-2]) % 2 for ident in ids[100:103]] == [1, 0, 1]
    assert found == RecoveryCounts(acked=1499, released=997, dead=1, unjudged=500, deleted=3)
    assert sizes == [2000, 997]
    assert told[-1] == (3000, 3000)
    assert all(done <= total for done, total in told)
    (letter,) = [unpack([w for pair in fields.items() for w in pair]) for _, fields in client.xrange("morgue")]
    assert (letter.id, letter.stream, letter.group, letter.deliveries) == ("9-0", "s", "g", 9)
    assert (letter.reason, letter.error, dict(zip(letter.fields[::2], letter.fields[1::2], strict=True))) == (
        "reject", "delivered 9 times", {b"n": b"9", b"kind": b"odd"},
    )  # fmt: skip
    assert len(pending(client)) == 997 + 500 + 10
    again = recover(spark, server.url, "s", "g", "30m", lambda entries: entries.selectExpr("id", "'ack' AS verdict"))
    assert again == RecoveryCounts(acked=1497)


def test_invalid_results_settle_nothing() -> None:
    """An invalid decision is an error that names its entry, and nothing is settled."""
    wanted = {b"1-0", b"2-0"}
    rows = [("1-0", "ack", None), ("2-0", None, None), ("1-0", "ack", "twice alike")]
    assert checked_decisions(wanted, rows) == {b"1-0": EntryDecision("ack")}
    for wrong, says in (
        ([("1-0", "drop", None)], "the verdict on 1-0 is 'drop': it must be one of ack, release, dead, or null"),
        ([("3-0", "ack", None)], "the function returned a verdict on '3-0', which is not one of its entries"),
        ([("1-0", "ack", None), ("1-0", "dead", None)], "there are two verdicts on 1-0: ack and dead"),
        ([(1, "ack", None)], "the function returned a verdict on 1, which is not one of its entries"),
    ):
        with pytest.raises(UsageError, match=says):
            checked_decisions(wanted, wrong)


# --- beside others ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noted", [False, True], ids=["new", "resumed"])
def test_what_is_delayed_is_not_decided_about(server: ServerProcess, client: redis.Redis, *, noted: bool) -> None:
    """A recovery leaves out an entry that waits for a delayed retry, also if a killed recovery held it."""
    ids = leave(client, 10)
    client.zadd(key("s", "g"), dict.fromkeys(ids[:4], (client.time()[0] + 3600) * 1000))
    made = Recovery(server.url, "s", "g", HOUR // 2, name="recover", slice_size=100, dead=None)
    if noted:
        client.set("millstream:{s}:recover:g:recover", "0-0")
        client.xclaim("s", "g", "recover", 0, ids[:2], justid=True)
    try:
        assert made.run(lambda held: dict.fromkeys(held, EntryDecision("ack"))).acked == 6
    finally:
        made.close()
    assert set(pending(client)) == set(ids[:4])


def test_what_others_claim_meanwhile_is_left_to_them(server: ServerProcess, client: redis.Redis) -> None:
    """An entry that another consumer claims during the decision is left to it and counted."""
    ids = leave(client, 30)
    made = Recovery(server.url, "s", "g", HOUR // 2, name="recover", slice_size=100, dead=None)

    def decide(held: Any) -> dict[bytes, EntryDecision]:
        client.xclaim("s", "g", "thief", 0, ids[:3], justid=True)
        client.xack("s", "g", ids[3])
        return dict.fromkeys(held, EntryDecision("dead" if len(held) % 2 else "ack"))

    try:
        assert made.run(decide) == RecoveryCounts(acked=26, taken=4)
    finally:
        made.close()
    assert {held for held, _ in pending(client).values()} == {b"thief"}


def test_what_a_worker_claimed_stays_its_own_though_the_entry_was_deleted(
    server: ServerProcess, client: redis.Redis
) -> None:
    """An entry that a worker claimed stays with it, even if the entry was deleted from the stream."""
    ids = leave(client, 10)

    def claimed_and_deleted() -> None:
        client.xclaim("s", "g", "thief", 0, ids[:2], justid=True)
        client.xdel("s", *ids[:4])

    failpoints.on("settling", claimed_and_deleted)
    try:
        found = recover(None, server.url, "s", "g", "30m", verdict="dead")
    finally:
        failpoints.clear()
    assert found == RecoveryCounts(dead=6, deleted=2, taken=2)
    assert pending(client) == {ids[0]: (b"thief", 1), ids[1]: (b"thief", 1)}


def test_an_entry_is_dead_once_whoever_else_writes(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry is added to the dead-letter stream once, although other writers and lost replies interfere."""
    ids = leave(client, 120)
    sent = Router.once
    seen: list[str] = []

    def once(self: Router, commands: Any) -> Any:
        writing = commands[0] == ("MULTI",) and commands[1][0] == "XADD"
        if writing and not seen:
            client.xadd("s:dead", {"another": "writer"}, id="1-1")
        replies = sent(self, commands)
        if writing:
            seen.append("sent")
            if len(seen) == 3:
                raise ConnectionResetError("the reply is lost")
        return replies

    monkeypatch.setattr(Router, "once", once)
    assert recover(None, server.url, "s", "g", "30m", verdict="dead", reason="old") == RecoveryCounts(dead=120)
    client.xdel("s:dead", "1-1")
    assert dead_ids(client) == [ident.decode() for ident in ids]
    assert len(seen) == 4  # three batches, and one of them twice


def test_a_dead_letter_stream_that_is_none_loses_nothing(server: ServerProcess, client: redis.Redis) -> None:
    """If the dead-letter key is not a stream, the recovery fails. The entries stay pending for the next run."""
    leave(client, 20)
    client.set("s:dead", "a string")
    with pytest.raises(UsageError, match="s:dead holds a string and no stream"):
        recover(None, server.url, "s", "g", "30m", verdict="dead")
    assert client.xpending("s", "g")["pending"] == 20
    client.delete("s:dead")
    assert recover(None, server.url, "s", "g", "30m", verdict="dead") == RecoveryCounts(dead=20)


@pytest.mark.parametrize(
    ("last", "left"),
    [("18446744073709551615-18446744073709551615", 0), ("18446744073709551615-18446744073709551600", 15)],
)
def test_a_dead_letter_stream_without_ids_left_loses_nothing(
    server: ServerProcess, client: redis.Redis, last: str, left: int
) -> None:
    """If the dead-letter stream has too few ids left, the recovery fails and the entries stay pending."""
    leave(client, 20)
    client.xadd("s:dead", {"x": "1"}, id=last)
    with pytest.raises(UsageError, match=f"s:dead has the last id {last}, and no 20 ids are left after it"):
        recover(None, server.url, "s", "g", "30m", verdict="dead")
    assert (client.xpending("s", "g")["pending"], client.xlen("s:dead")) == (20, 1)
    assert recover(None, server.url, "s", "g", "30m", verdict="dead", dead="other") == RecoveryCounts(dead=20)
    assert len(dead_ids(client, "other")) == 20


class Hindered:
    """A condition under which the server refuses dead letters from some moment on. ``end`` removes it."""

    def __init__(self, client: redis.Redis, user: str) -> None:
        self._client = client
        self._user = user

    def full(self) -> None:
        """Leave the server no memory."""
        self._client.config_set("maxmemory", 1)

    def forbidden(self) -> None:
        """Forbid the user to write to any dead-letter stream."""
        run(self._client, "ACL", "SETUSER", self._user, "resetkeys", "~s", "~millstream:*")

    def replaced(self) -> None:
        """Replace the key by a string."""
        self._client.set("s:dead", "a string")

    def end(self) -> None:
        """Restore the server."""
        if self._client.config_get("maxmemory") != {b"maxmemory": b"0"}:
            self._client.config_set("maxmemory", 0)
        run(self._client, "ACL", "SETUSER", self._user, "allkeys")
        if self._client.type("s:dead") == b"string":
            self._client.delete("s:dead")


@pytest.mark.parametrize(
    ("server", "kind"),
    [("redis", "full"), *((name, kind) for name in ("redis", "millstream") for kind in ("forbidden", "replaced"))],
    indirect=["server"],
)
@pytest.mark.parametrize("moment", ["before MULTI", "before EXEC"])
def test_a_letter_that_is_refused_in_its_transaction_loses_nothing(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, kind: str, moment: str
) -> None:
    """If the server refuses a dead letter within the transaction, the entries stay pending."""
    hindered = Hindered(client, "judge")
    run(client, "ACL", "SETUSER", "judge", "reset", "on", ">pw", "+@all", "allkeys")
    ids = leave(client, 20)
    before = pending(client)
    asked = BlockingConnection.ask
    reached: list[str] = []

    def ask(self: BlockingConnection, commands: Any) -> list[Any]:
        if commands[0] != ("MULTI",) or commands[1][0] != "XADD" or reached:
            return asked(self, commands)
        reached.append(kind)
        if moment == "before EXEC":
            self.send(pack(*commands[:-1]))
            eventually(lambda: {str(len(commands) - 2)} & {row.get("multi") for row in client.client_list()})
        getattr(hindered, kind)()
        self.send(pack(*(commands if moment == "before MULTI" else commands[-1:])))
        return self.receive(len(commands))

    monkeypatch.setattr(BlockingConnection, "ask", ask)
    url = server.url.replace("://", "://judge:pw@")
    try:
        with pytest.raises(UsageError):
            recover(None, url, "s", "g", "30m", verdict="dead")
    finally:
        hindered.end()
    assert reached == [kind]
    held = pending(client)
    assert sorted(held) == sorted(set(ids) - {ident.encode() for ident in dead_ids(client)})
    assert {count for _, count in held.values()} == {count for _, count in before.values()}
    recover(None, url, "s", "g", "30m", verdict="dead")
    assert dead_ids(client) == [ident.decode() for ident in ids]
    assert client.xpending("s", "g")["pending"] == 0


def test_a_server_that_stays_away_ends_the_recovery_at_once(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server stays unreachable, the recovery ends instead of retrying for each entry."""
    ids = leave(client, 3)
    looks: list[int] = []
    asked = Router.ask

    def ask(self: Router, commands: Any) -> Any:
        if not commands or commands[0][0] != "WATCH":
            return asked(self, commands)
        looks.append(1)
        raise ConnectionRefusedError("away for half a minute")  # as the router does in the end

    with monkeypatch.context() as away:
        away.setattr(Router, "ask", ask)
        with pytest.raises(ConnectionRefusedError, match="half a minute"):
            recover(None, server.url, "s", "g", "30m", verdict="dead")
    assert looks == [1]
    assert recover(None, server.url, "s", "g", "30m", verdict="dead") == RecoveryCounts(dead=len(ids))


def test_a_worker_of_that_name_keeps_what_it_holds(server: ServerProcess, client: redis.Redis) -> None:
    """A recovery refuses a consumer name under which a worker holds entries."""
    leave(client, 4, fresh=2)
    with pytest.raises(UsageError, match=r"consumer 'alive' of this group holds 5-0.*give this one another name"):
        recover(None, server.url, "s", "g", "30m", verdict="dead", name="alive")
    assert [held[0] for held in pending(client).values()] == [b"d1", b"d1", b"d2", b"d2", b"alive", b"alive"]
    assert client.keys("millstream:*") == []
    assert recover(None, server.url, "s", "g", "30m", verdict="dead") == RecoveryCounts(dead=4)


def test_a_slice_that_ends_at_the_greatest_id_is_gone_on_with(server: ServerProcess, client: redis.Redis) -> None:
    """A recovery continues after a slice that ends at an id with the greatest sequence number."""
    client.xadd("s", {"a": "1"}, id="5-18446744073709551615")
    client.xadd("s", {"a": "1"}, id="18446744073709551615-18446744073709551615")
    client.xgroup_create("s", "g", "0")
    for count in (1, 2):
        client.xreadgroup("g", "recover", {"s": ">"}, count=1)
        client.set("millstream:{s}:recover:g:recover", "0-0")
        assert recover(None, server.url, "s", "g", "30m", verdict="ack") == RecoveryCounts(acked=1), count


def test_two_of_one_name_do_not_work_at_the_same_time(server: ServerProcess, client: redis.Redis) -> None:
    """Two recoveries of one name cannot run at once. One that died on this machine does not block the next."""
    leave(client, 3)
    key = "millstream:{s}:recover:g:recover:lock"
    for owner in (f"{socket.gethostname()}:{os.getpid()}:ab", "elsewhere:1:ab"):
        client.set(key, owner, px=30_000)
        with pytest.raises(UsageError, match="a recovery named 'recover' of this group is running"):
            recover(None, server.url, "s", "g", "30m", verdict="ack")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    client.set(key, f"{socket.gethostname()}:{gone.pid}:ab", px=30_000)
    assert recover(None, server.url, "s", "g", "30m", verdict="ack") == RecoveryCounts(acked=3)
    assert not client.exists(key)


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"min_idle_time": "soon", "verdict": "ack"}, "min_idle_time='soon': it must be a length of time such as"),
        ({"min_idle_time": 0, "verdict": "ack"}, "min_idle_time=0"),
        ({}, "takes a function or a verdict"),
        ({"verdict": "drop"}, "verdict='drop' is invalid. Write one of ack, release, dead"),
        ({"verdict": "ack", "slice_size": 0}, "slice_size=0 is invalid. Write at least 1"),
        ({"verdict": "ack", "url": "memory://"}, "lives in one process"),
        ({"function": len}, "has no Spark session to call a function"),
    ],
)
def test_a_wrong_argument_is_named(given: dict[str, Any], says: str) -> None:
    """An invalid argument is named before any claim."""
    arguments = {"url": "redis://127.0.0.1:1/0", "stream": "s", "group": "g", "min_idle_time": "10m"} | given
    with pytest.raises(ConfigError, match=says):
        recovery.recover(None, **arguments)


def test_the_command_settles_by_one_verdict(
    server: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command settles all entries by one decision.

    It requires ``--yes`` to acknowledge, and the group must exist.
    """
    leave(client, 12, fresh=2)
    words = ["recover", "s", "--group", "g", "--min-idle", "30m", "--url", server.url, "-o", "json"]
    asked = CliRunner().invoke(main, [*words, "--verdict", "ack"])
    assert (asked.exit_code, "use --yes to acknowledge" in asked.stderr) == (2, True)
    done = CliRunner().invoke(main, [*words, "--verdict", "release"])
    assert (done.exit_code, json.loads(done.stdout)) == (
        0, {"acked": 0, "released": 12, "dead": 0, "unjudged": 0, "deleted": 0, "taken": 0},
    )  # fmt: skip
    done = CliRunner().invoke(main, [*words, "--verdict", "ack", "--yes"])
    assert json.loads(done.stdout)["acked"] == 12
    wrong = CliRunner().invoke(main, [*words[:3], "nope", *words[4:], "--verdict", "release"])
    assert (wrong.exit_code, "stream 's' has no group 'nope'" in wrong.stderr) == (4, True)
    for more in ([], ["--verdict", "ack", "--function", "a:b"], ["--verdict", "ack", "--yes", "--reason", "x"]):
        assert CliRunner().invoke(main, [*words, *more]).exit_code == 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "triage_here.py").write_text("def triage(entries):\n    return entries\n")
    assert load_function("triage_here:triage").__name__ == "triage"
    for spec, says in (
        ("triage_here", "names no function"),
        ("nowhere:triage", "there is no module 'nowhere'"),
        ("triage_here:sentence", "has no function 'sentence'"),
    ):
        with pytest.raises(UsageError, match=says):
            load_function(spec)


TRIAGE = """
from pyspark.sql import functions as F


def triage(entries):
    number = entries.fields["n"].cast("int")
    word = F.when(number % 3 == 0, "ack").when(number % 3 == 1, "release").otherwise("dead")
    return entries.select("id", word.alias("verdict"), F.concat(F.lit("number "), number).alias("reason"))


def mistaken(entries):
    return entries.select("id", F.lit("drop").alias("verdict"))


def nothing(entries):
    return None
"""


@pytest.mark.usefixtures("spark")
def test_the_command_settles_by_a_function(
    server: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command settles by a function from a file. If the function returns something invalid, nothing is settled."""
    ids = leave(client, 30, fresh=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # put back at the end
    (tmp_path / "triage_of_ours.py").write_text(TRIAGE)
    words = ["recover", "s", "--group", "g", "--min-idle", "30m", "--url", server.url, "-o", "json", "--key", "morgue"]
    for name, says in (
        ("mistaken", "the verdict on 1-0 is 'drop': it must be one of ack, release, dead, or null"),
        ("nothing", "the function returned NoneType, and must give a DataFrame of id and verdict"),
    ):
        wrong = CliRunner().invoke(main, [*words, "--function", f"triage_of_ours:{name}"])
        assert (wrong.exit_code, wrong.stdout) == (2, "")
        assert says in wrong.stderr
        assert "Traceback" not in wrong.stderr
        assert len(pending(client)) == 32
    done = CliRunner().invoke(main, [*words, "--slice", "7", "--function", "triage_of_ours:triage"])
    assert (done.exit_code, json.loads(done.stdout)) == (
        0, {"acked": 10, "released": 10, "dead": 10, "unjudged": 0, "deleted": 0, "taken": 0},
    )  # fmt: skip
    assert [int(ident[:-2]) for ident in dead_ids(client, "morgue")] == list(range(2, 31, 3))
    left = pending(client)
    assert [held for held, _ in left.values()] == [b""] * 10 + [b"alive"] * 2
    assert [int(ident[:-2]) for ident in left] == [*range(1, 31, 3), 31, 32]
    assert len(ids) == 32
