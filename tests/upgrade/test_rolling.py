"""A rolling upgrade: 0.1 and the present version at work on the same streams, each replaced by the other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from support.groups import all_done, consumers
from support.servers import ServerProcess, redis_server
from support.versions import Version
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
    found = Crew(server.url, versions, tmp_path, SLOW="1.2")
    yield found
    found.dismiss()


def both_at_work(client: redis.Redis, since: int) -> bool:
    """Whether each version has run something since so many runs."""
    return {version for _, version, _ in runs(client)[since:]} == {"old", "new"}


def test_versions_take_over_from_each_other_without_a_crash(client: redis.Redis, crew: Crew) -> None:
    """Stopped and replaced one by one: every entry is run exactly as often as it asks for.

    A slow entry runs three times as long as a lease, and once: the other version saw it renewed, and left it alone.
    """
    kinds = {"ok": 40, "brief": 40, "once": 10, "flaky": 10, "error": 4, "nack": 4, "reject": 3, "slow": 4}
    made = publish(client, kinds, 1)
    client.xgroup_create("orders", "billing", "0")
    for name in ("old", "new"):
        crew.hire(name)
    eventually(lambda: both_at_work(client, 0), what="both versions work")
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
            eventually(lambda: both_at_work(client, 0), what="both versions work")
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


def told(version: Version, *words: str) -> Any:
    """What a subcommand shows, as JSON."""
    return json.loads(version.cli(*words, "-o", "json").stdout)


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_each_version_leads_and_shows_workers_of_the_other(
    server: ServerProcess, client: redis.Redis, crew: Crew, versions: dict[str, Version]
) -> None:
    """The registry, orders, pauses and dead letters: what one version writes the other lists, obeys and puts back."""
    at = ("--url", server.url)
    old, new = versions["old"], versions["new"]
    client.xgroup_create("orders", "billing", "0", mkstream=True)
    processes = {name: crew.hire(name) for name in ("old", "new")}
    eventually(lambda: len(told(new, "worker", "ls", *at)["workers"]) == 2, what="both are registered")
    shown = {}
    for name, version in versions.items():
        rows = told(version, "worker", "ls", *at)["workers"]
        shown[name] = {row["pid"]: (row["id"], sorted(row)) for row in rows}
    assert {pid: row[0] for pid, row in shown["old"].items()} == {pid: row[0] for pid, row in shown["new"].items()}
    # letters of both; each version puts back and removes those of the other as well as its own
    publish(client, {"reject": 30, "error": 10}, 1)
    eventually(lambda: client.xlen("orders:dead") == 40, what="all died")
    ids = [row["id"] for row in told(old, "dead", "ls", "orders", *at, "--limit", "50")]
    assert ids == [row["id"] for row in told(new, "dead", "ls", "orders", *at, "--limit", "50")]
    for version in (old, new):
        assert version.cli("dead", "export", "orders", *at).stdout.count("\n") == 40
    assert told(old, "dead", "show", "orders", ids[0], *at) == told(new, "dead", "show", "orders", ids[0], *at)
    for version, chosen in ((old, ids[:5]), (new, ids[5:10])):
        assert told(version, "dead", "retry", "orders", *chosen, "--yes", *at)["returned"] == 5
    eventually(lambda: client.xlen("orders:dead") == 40, what="they died again")
    for version in (old, new):
        (again,) = client.xrevrange("orders:dead", count=1)
        assert len(told(version, "dead", "show", "orders", again[0], *at)["history"]) == 1
    # a pause of one version's is listed and ended by the other's, and workers of both obey both
    old.cli("worker", "pause", "orders", "billing", "--reason", "by old", *at)
    eventually(lambda: _paused(told(new, "worker", "ls", *at)), what="both obey the pause")
    assert told(new, "worker", "ls", *at)["pauses"][0]["reason"] == "by old"
    new.cli("worker", "resume", "orders", "billing", *at)
    assert told(old, "worker", "ls", *at)["pauses"] == []
    ident = {name: shown["new"][process.pid][0] for name, process in processes.items()}
    new.cli("worker", "drain", ident["old"], *at)
    old.cli("worker", "drain", ident["new"], *at)
    assert [process.wait(timeout=30) for process in processes.values()] == [0, 0]


def _paused(shown: dict[str, Any]) -> bool:
    return all(row["paused"] for row in shown["workers"])
