"""What 0.1's workers left in a server, killed in the midst: the present version's take it over, and show it."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from support.versions import Version, here
from support.waiting import eventually
from upgrade import kept
from upgrade.crew import Crew

pytestmark = pytest.mark.realserver

REASONS = Counter(["error", "nack", "reject", "invalid", "overdue"])


def told(*words: str) -> Any:
    """What a subcommand shows, as JSON."""
    done = here(*words, "-o", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def letters(client: redis.Redis) -> list[dict[str, str]]:
    """The fields of every dead letter."""
    rows: Any = client.xrange("orders:dead")
    return [fields for _, fields in rows]


def test_recorded_workers_and_dead_letters_are_shown(worker_state: redis.Redis, url: str) -> None:
    """A heartbeat with what ran, a pause, letters of every reason, one with an earlier death."""
    listed = told("worker", "ls", "--url", url)
    (worker, *_) = [row for row in listed["workers"] if row["running"]]
    assert worker["version"] == "0.1.0"
    assert listed["pauses"][0]["reason"] == "the provider is down"
    shown = told("worker", "show", worker["id"], "--url", url)
    assert shown["jobs"][0]["stream"] == "orders"
    rows = told("dead", "ls", "orders", "--url", url)
    assert Counter(row["reason"] for row in rows) == REASONS
    whole = [told("dead", "show", "orders", row["id"], "--url", url) for row in rows]
    assert [len(each["history"]) for each in whole].count(1) == 1
    assert all(each["group"] == "billing" and each["stream"] == "orders" for each in whole)
    exported = here("dead", "export", "orders", "--url", url).stdout.splitlines()
    assert len(exported) == len(rows)


@pytest.fixture
def crew(url: str, versions: dict[str, Version], tmp_path: Path) -> Iterator[Crew]:
    """Workers of the present version, for whom a slow entry takes no time."""
    found = Crew(url, versions, tmp_path, MIN_IDLE="300")
    yield found
    found.dismiss()


def group_of(client: redis.Redis) -> dict[str, Any]:
    """All of the group billing of orders."""
    (group,) = kept.stream_shown(client, "orders")["groups"]
    return dict(group)


def test_recorded_entries_in_hand_are_taken_over(worker_state: redis.Redis, url: str, crew: Crew) -> None:
    """Nothing runs while the recorded pause holds; then each pending entry runs, with crashes and failures as recorded.

    Those that were in three crashes with 0.1 are handled and not dead; the one that failed twice dies of its third
    failure. One that has had its effect ``once`` has it no second time, and a letter that is put back has its history.
    """
    client = worker_state
    pending = {one[0]: one for one in group_of(client)["pending"]}
    records: Any = client.hgetall("millstream:{orders}:tries:billing")
    entries: Any = dict(client.xrange("orders"))
    (failed,) = [ident for ident in pending if entries[ident]["kind"] == "later"]
    assert {"0:1:0", "0:1:1"} <= set(records.values()), "the recording is not what this test is about"
    assert [records[failed], pending[failed][3]] == ["2:0:0", 2], "the same"
    assert max(one[3] for one in pending.values()) == 3, "the same"
    (mark,) = client.keys("*:once:billing:*")
    handled = mark.rpartition(":")[2]
    client.execute_command("XCLAIM", "orders", "billing", "ghost", 0, handled, "IDLE", 90_000, "FORCE", "JUSTID")

    # A worker looks for the end of its pause every five seconds only, so one of the two servers is enough for that.
    native = "millstream_version" in client.info("server")
    if not native:
        worker = crew.hire("new")
        eventually(lambda: client.keys(f"millstream:worker:*-{worker.pid}-*"), what="it has begun")
    seconds, micros = client.time()
    resumed = here("worker", "resume", "orders", "billing", "--url", url)
    assert resumed.exit_code == 0, resumed.output
    if native:
        crew.hire("new")
    eventually(lambda: client.xpending("orders", "billing")["pending"] == 0, what="all are settled")
    rows: Any = client.xrange("effects")
    times = [int(ident.partition("-")[0]) for ident, fields in rows if fields["version"] == "new"]
    assert min(times) >= int(seconds) * 1000 + int(micros) // 1000, "it ran during the pause"
    ran = Counter(fields["n"] for _, fields in rows if fields["version"] == "new")
    assert ran == Counter(entries[ident]["n"] for ident in [*pending, handled])
    assert Counter(each["_dead.reason"] for each in letters(client)) == REASONS + Counter(["nack"])
    assert [each["_dead.deliveries"] for each in letters(client) if each["_dead.id"] == failed] == ["3"]
    assert client.xlen("orders:bills") == 1, "an effect was had again"
    assert client.hgetall("millstream:{orders}:tries:billing") == {}
    # the letter that had died once before goes back, and dies with both deaths on record
    dead: Any = client.xrange("orders:dead")
    (again,) = [ident for ident, fields in dead if "_dead.history" in fields]
    assert here("dead", "retry", "orders", again, "--yes", "--url", url).exit_code == 0
    eventually(lambda: [len(json.loads(each["_dead.history"])) for each in letters(client) if _returned(each)] == [2])


def _returned(letter: dict[str, str]) -> bool:
    return "_dead.history" in letter
