"""What 0.1's workers left in a server, killed in the midst: the present version's take it over, and show it."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from support.versions import Version
from support.waiting import eventually
from upgrade.crew import Crew

pytestmark = pytest.mark.realserver

REASONS = Counter(["error", "nack", "reject", "invalid", "overdue"])


def told(versions: dict[str, Version], *words: str) -> Any:
    """What the present version's subcommand shows, as JSON."""
    return json.loads(versions["new"].cli(*words, "-o", "json").stdout)


def letters(client: redis.Redis) -> list[dict[str, str]]:
    """The fields of every dead letter."""
    rows: Any = client.xrange("orders:dead")
    return [fields for _, fields in rows]


def test_recorded_workers_and_dead_letters_are_shown(
    worker_state: redis.Redis, url: str, versions: dict[str, Version]
) -> None:
    """A heartbeat with what ran, a pause, letters of every reason, one with an earlier death."""
    listed = told(versions, "worker", "ls", "--url", url)
    (worker, *_) = [row for row in listed["workers"] if row["running"]]
    assert worker["version"] == "0.1.0"
    assert listed["pauses"][0]["reason"] == "the provider is down"
    shown = told(versions, "worker", "show", worker["id"], "--url", url)
    assert shown["jobs"][0]["stream"] == "orders"
    rows = told(versions, "dead", "ls", "orders", "--url", url)
    assert Counter(row["reason"] for row in rows) == REASONS
    whole = [told(versions, "dead", "show", "orders", row["id"], "--url", url) for row in rows]
    assert [len(each["history"]) for each in whole].count(1) == 1
    assert all(each["group"] == "billing" and each["stream"] == "orders" for each in whole)
    exported = versions["new"].cli("dead", "export", "orders", "--url", url).stdout.splitlines()
    assert len(exported) == len(rows)


@pytest.fixture
def crew(url: str, versions: dict[str, Version], tmp_path: Path) -> Iterator[Crew]:
    """Workers of the present version, for whom a slow entry takes no time."""
    found = Crew(url, versions, tmp_path, MIN_IDLE="300")
    yield found
    found.dismiss()


def test_recorded_entries_in_hand_are_taken_over(
    worker_state: redis.Redis, url: str, versions: dict[str, Version], crew: Crew
) -> None:
    """Nothing runs while the recorded pause holds; then each pending entry runs, with crashes and failures as recorded.

    The entry that has an hour to wait still waits. One that has had its effect ``once`` has it no second time, and a
    letter that is put back has its history.
    """
    client = worker_state
    rows: Any = client.execute_command("XINFO", "STREAM", "orders", "FULL", "COUNT", 0)
    groups = dict(zip(rows[::2], rows[1::2], strict=True))["groups"]
    group = dict(zip(groups[0][::2], groups[0][1::2], strict=True))
    pending = {one[0]: one for one in group["pending"]}
    waiting = {ident for ident, one in pending.items() if one[1] == "(retry)"}
    records: Any = client.hgetall("millstream:{orders}:tries:billing")
    assert len(waiting) == 1, "the recording is not what this test is about"
    assert len(pending) > 4, "the same"
    assert {"1:0:0", "0:1:0"} <= set(records.values()), "the same"
    assert max(one[3] for one in pending.values()) >= 3, "the same"
    dead = len(letters(client))
    marked = next(key for key in client.keys("*:once:billing:*")).rpartition(":")[2]
    client.execute_command("XCLAIM", "orders", "billing", "ghost", 0, marked, "IDLE", 90_000, "FORCE", "JUSTID")

    before = client.xlen("effects")
    crew.hire("new")
    names = [each["name"] for each in client.xinfo_consumers("orders", "billing")]
    eventually(lambda: any("paused" in line for line in _output(tmp(crew))), what="it obeys the pause")
    assert client.xlen("effects") == before, names
    versions["new"].cli("worker", "resume", "orders", "billing", "--url", url)
    eventually(lambda: client.xpending("orders", "billing")["pending"] == len(waiting), what="all but one are settled")
    ran = Counter(fields["n"] for _, fields in client.xrange("effects") if fields["version"] == "new")
    entries: Any = dict(client.xrange("orders"))
    assert ran == Counter(entries[ident]["n"] for ident in [*(pending.keys() - waiting), marked])
    assert len(letters(client)) == dead, "an entry paid for a crash or a failure of 0.1's"
    assert client.xlen("orders:bills") == 1, "an effect was had again"
    assert set(client.hgetall("millstream:{orders}:tries:billing")) == waiting
    # the letter that had died once before goes back, and dies with both deaths on record
    again = next(ident for ident, fields in client.xrange("orders:dead") if "_dead.history" in fields)
    versions["new"].cli("dead", "retry", "orders", again, "--yes", "--url", url)
    eventually(lambda: any(len(json.loads(each.get("_dead.history", "[]"))) == 2 for each in letters(client)))


def tmp(crew: Crew) -> Path:
    """Where the crew's output is."""
    return crew._folder / "new.out"


def _output(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()
