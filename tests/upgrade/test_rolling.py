"""A rolling upgrade: 0.1 and the present version at work on the same streams, each replaced by the other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from support.groups import all_done, consumers
from support.servers import ServerProcess, redis_server
from support.versions import Version, here
from support.waiting import eventually
from upgrade import kept
from upgrade.crew import Crew, check, publish, runs

pytestmark = pytest.mark.realserver


@pytest.fixture(params=["redis", "millstream"])
def server(request: pytest.FixtureRequest, tmp_path: Path, versions: dict[str, Version]) -> Iterator[ServerProcess]:
    """A server whose commands the worker makes up for in part, and one that has all of them."""
    folder = tmp_path / "server"
    made = redis_server(folder) if request.param == "redis" else versions["new"].server(folder)
    with made as found:
        yield found


@pytest.fixture
def client(server: ServerProcess) -> Iterator[redis.Redis]:
    """A client that returns text."""
    with server.client(**kept.TEXT) as found:
        yield found


@pytest.fixture
def crew(server: ServerProcess, versions: dict[str, Version], tmp_path: Path) -> Iterator[Crew]:
    """Workers of both versions; all are gone at the end."""
    found = Crew(server.url, versions, tmp_path)
    yield found
    found.dismiss()


def both_at_work(client: redis.Redis, since: int) -> bool:
    """Whether each version has run something since so many runs."""
    return {version for _, version, _ in runs(client)[since:]} == {"old", "new"}


def until_both_work(client: redis.Redis, made: dict[int, str]) -> None:
    """Feed them until each version has run something: one may end all there is before the other has begun."""

    def fed() -> bool:
        made.update(publish(client, {"brief": 5}, 1 + len(made)))
        return both_at_work(client, 0)

    eventually(fed, 60, what="both versions work")


@pytest.mark.either_server  # by crashes they do so on both, and ours is replaced below
def test_versions_take_over_from_each_other_without_a_crash(client: redis.Redis, crew: Crew) -> None:
    """Stopped and replaced one by one: every entry is run exactly as often as it asks for.

    A slow entry runs longer than a lease, and once: the other version saw it renewed, and left it alone. (The lease is
    long, since a machine that stands still for longer may rightly have an entry run again.)
    """
    crew.variables |= {"MIN_IDLE": "4000", "SLOW": "5"}
    kinds = {"ok": 40, "brief": 40, "once": 10, "flaky": 10, "error": 4, "nack": 4, "reject": 3, "slow": 4}
    made = publish(client, kinds, 1)
    client.xgroup_create("orders", "billing", "0")
    for name in ("old", "new"):
        crew.hire(name)
    until_both_work(client, made)
    for leaving, coming in (("old", "new"), ("new", "old")):
        made |= publish(client, kinds, 1 + len(made))
        crew.hire(coming)
        assert crew.retire(leaving) == 0
    eventually(all_done(client, "orders", "billing"), what="everything settled")
    check(client, made, set())


def test_versions_take_over_from_each_other_by_crashes(client: redis.Redis, crew: Crew) -> None:
    """Killed and replaced by the other version, with an entry among the load that kills whoever runs it.

    Each reads what the other has on record: a crash is forgiven once, a failure counts, only the poison ends overdue.
    """
    kinds = {"ok": 60, "brief": 150, "once": 10, "flaky": 10, "error": 4, "nack": 4, "reject": 3}
    client.xgroup_create("orders", "billing", "0", mkstream=True)
    for name in ("old", "new"):
        crew.hire(name)
    eventually(lambda: len(consumers(client, "orders", "billing")) == 2, what="both versions read")
    made: dict[int, str] = {}
    for leaving, coming in (("old", "new"), ("new", "old")):
        begun = len(runs(client))
        made |= publish(client, kinds, 1 + len(made))
        eventually(lambda begun=begun: len(runs(client)) > begun + 20, what="they are in the midst of it")
        crew.kill(leaving)
        crew.hire(coming)
    made |= publish(client, {"poison": 1, "ok": 20}, 1 + len(made))

    def settled() -> bool:
        crew.relieve()
        return all_done(client, "orders", "billing")()

    eventually(settled, 60, what="everything settled")
    check(client, made, crew.crashed)
    assert both_at_work(client, 0)
    poison = max(made, key=lambda number: made[number] == "poison")
    assert {version for number, version, _ in runs(client) if number == poison} == {"old", "new"}, "it killed both"


def test_a_delay_meets_a_version_that_does_not_know_of_it(client: redis.Redis, crew: Crew) -> None:
    """The present version delays by an hour; 0.1 may run the entry early, and acks it: no due time is left behind."""
    client.xgroup_create("orders", "billing", "0", mkstream=True)
    crew.hire("new")
    publish(client, {"later": 3}, 1)
    due = "millstream:{orders}:due:billing"
    eventually(lambda: client.zcard(due) == 3, what="they are delayed")
    assert [version for _, version, _ in runs(client)] == ["new"] * 3
    crew.kill("new")
    crew.hire("old")
    eventually(lambda: len(runs(client)) > 3, what="the old version runs one of them early")
    crew.retire("old")
    rows: Any = client.xpending_range("orders", "billing", "-", "+", 10)
    client.xack("orders", "billing", *(row["message_id"] for row in rows))
    crew.hire("new")
    eventually(lambda: not client.exists(due), what="no due time is left")


def test_a_server_is_replaced_under_workers_of_both_versions(tmp_path: Path, versions: dict[str, Version]) -> None:
    """0.1's server is stopped with entries in hand; the present one goes on with its log, and so do the workers."""
    before = versions["old"].server(tmp_path)
    with before, before.client(**kept.TEXT) as client:
        crew = Crew(before.url, versions, tmp_path)
        try:
            client.xgroup_create("orders", "billing", "0", mkstream=True)
            for name in ("old", "new"):
                crew.hire(name)
            made = publish(client, {"brief": 100, "once": 40, "flaky": 20, "error": 5, "reject": 5}, 1)
            until_both_work(client, made)
            assert before.stop() == 0
            after = versions["new"].server(tmp_path, port=before.port)
            with after:
                made |= publish(client, {"brief": 20, "once": 10}, 1 + len(made))
                eventually(all_done(client, "orders", "billing"), what="everything settled")
                seen = {number for number, _, _ in runs(client)}
                assert seen == set(made)
                letters: Any = client.xrange("orders:dead")
                assert sorted(int(each["n"]) for _, each in letters) == sorted(
                    number for number, kind in made.items() if kind in ("error", "reject")
                )
                bills: Any = client.xrange("orders:bills")
                assert sorted(int(each["n"]) for _, each in bills) == sorted(n for n in made if made[n] == "once")
        finally:
            crew.dismiss()


def out(version: Version, *words: str) -> str:
    """What a subcommand writes to standard output."""
    if version.name == "old":
        return version.cli(*words).stdout
    done = here(*words)  # quicker than a process
    assert done.exit_code == 0, done.output
    return done.stdout


def told(version: Version, *words: str) -> Any:
    """What it shows, as JSON."""
    return json.loads(out(version, *words, "-o", "json"))


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_each_version_leads_and_shows_workers_of_the_other(
    server: ServerProcess, client: redis.Redis, crew: Crew, versions: dict[str, Version]
) -> None:
    """The registry, orders, pauses and dead letters: what one version writes the other lists, obeys and puts back."""
    at = ("--url", server.url)
    old, new = versions["old"], versions["new"]
    client.xgroup_create("orders", "billing", "0", mkstream=True)
    pids = [crew.hire(name).pid for name in ("old", "new")]
    # letters of both; each version puts some of them back
    made = publish(client, {"error": 5}, 1)

    def both_had_some() -> bool:
        made.update(publish(client, {"reject": 20}, 1 + len(made)))
        return both_at_work(client, 0)

    eventually(both_had_some, what="both versions work")
    eventually(lambda: client.xlen("orders:dead") == len(made), what="all died")
    ids = [row["id"] for row in told(old, "dead", "ls", "orders", *at, "--limit", "9999")]
    assert ids == [row["id"] for row in told(new, "dead", "ls", "orders", *at, "--limit", "9999")]
    assert len(ids) == len(made)
    first = ("dead", "show", "orders", ids[0], *at)
    assert told(old, *first) == told(new, *first)
    for version, chosen in ((old, ids[:5]), (new, ids[5:10])):
        assert told(version, "dead", "retry", "orders", *chosen, "--yes", *at)["returned"] == 5
    eventually(lambda: client.xlen("orders:dead") == len(made), what="they died again")
    exported = [out(version, "dead", "export", "orders", *at) for version in (old, new)]
    assert exported[0] == exported[1]
    assert exported[0].count('"returned_ms"') == 10
    # the registry; a pause and orders by the version that the worker is not
    listed = [told(version, "worker", "ls", *at)["workers"] for version in (old, new)]
    ids_by_pid = [{int(row["id"].split("-")[-2]): row["id"] for row in rows} for rows in listed]
    assert ids_by_pid[0] == ids_by_pid[1]
    assert sorted(ids_by_pid[0]) == sorted(pids)
    ident = dict(zip(("old", "new"), map(ids_by_pid[0].__getitem__, pids), strict=True))
    out(old, "worker", "pause", "orders", "billing", "--reason", "by old", *at)
    assert told(new, "worker", "ls", *at)["pauses"][0]["reason"] == "by old"
    # one that drains may end, its record with it, before it says that it is paused
    eventually(lambda: all(_paused(client, name) for name in ident.values()), what="both obey the pause")
    out(new, "worker", "drain", ident["old"], *at)
    out(old, "worker", "drain", ident["new"], *at)
    out(new, "worker", "resume", "orders", "billing", *at)
    assert told(old, "worker", "ls", *at)["pauses"] == []
    assert [process.wait(timeout=30) for _, process in crew.at_work] == [0, 0]


def _paused(client: redis.Redis, worker: str) -> bool:
    """Whether a worker says that its handler is paused."""
    record = client.get(f"millstream:worker:{worker}")
    return record is not None and all(each["paused"] for each in json.loads(str(record))["subscribers"])
