"""The pages of handlers and of one entry's runs, over workers of this version and of the one before."""

import json
from collections import Counter
from math import inf
from typing import Any
from urllib.parse import quote

import pytest
import redis

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.dead_letter.tries import FailedTry
from millstream.client.jobs import record
from millstream.clock import Now, SystemClock
from millstream.ops.handlers.status import percentile
from millstream.ops.history.model import TEN
from millstream.worker.model.histogram import BOUNDS, WINDOW_MS, Durations, RecentRuns
from millstream.worker.model.stats import SubscriberStats
from millstream.worker.registry import facts as registry_facts
from millstream.worker.registry import protocol
from support.console import ConsoleThread
from support.enrolled import BOUNDS_MS, RECENT, enrol

HOSTILE = "<script>alert(1)</script>\x1b[2J"


def test_the_figures_of_workers_are_merged(console: ConsoleThread, client: redis.Redis) -> None:
    """Rates add up, and percentiles are those of all runs together, also by version and by worker."""
    enrol(client, "web-1", recent=RECENT, retried=5, limits=[])
    enrol(client, "web-2", "0.3.0", recent=RECENT | {"runs": [600]}, retried=1)
    (row,) = console.ask("/handlers.json").facts["handlers"]
    assert (row["workers"], row["per_second"], row["retried"], row["in_hand"]) == (2, 20.0, 6, 10)
    assert (row["p50_ms"], row["p95_ms"], row["p99_ms"], row["unknown"]) == (1.0, 85.8, 280.0, None)
    one = console.ask("/handlers.json?key=orders&group=billing&handler=bill").facts
    assert [(each["version"], each["p50_ms"]) for each in one["versions"]] == [("0.2.0", 10.0), ("0.3.0", 0.5)]
    assert [each["worker"] for each in one["worker_list"]] == ["web-1", "web-2"]
    assert "86 ms" in console.ask("/handlers").text
    for words, found in (("worker=web-2", 1), ("worker=nobody", 0), ("group=billing", 1), ("key=other", 0)):
        assert console.ask(f"/handlers.json?{words}").facts["found"] == found
    assert console.ask("/handlers?key=orders&group=billing&handler=nope").status == 404


def test_a_worker_of_the_version_before_makes_figures_unknown(console: ConsoleThread, client: redis.Redis) -> None:
    """If one worker reports no durations, rate, percentiles and retries are unknown with the reason, never too low."""
    enrol(client, "new", recent=RECENT, retried=5)
    enrol(client, "old", "0.1.0")
    (row,) = console.ask("/handlers.json").facts["handlers"]
    assert [row[name] for name in ("per_second", "p50_ms", "p95_ms", "p99_ms", "retried")] == [None] * 5
    assert "earlier version" in row["unknown"]
    assert row["handled"] == 1800
    assert console.ask("/handlers").text.count(">unknown</span>") == 5


def test_a_frozen_handler_has_a_mark_and_its_current_run(console: ConsoleThread, client: redis.Redis) -> None:
    """A run that has not ended is in no percentile, so the table has it beside them, with a mark of a frozen worker."""
    job = {"id": "1-0", "since_ms": SystemClock().wall_time() - 75_000, "deliveries": 1}
    blocked = {"since_ms": SystemClock().wall_time() - 75_000, "where": "bill.py:7 in bill"}
    enrol(client, "web-1", recent=RECENT)
    enrol(client, "web-2", recent=RECENT, blocked=blocked, jobs=[job])
    (row,) = console.ask("/handlers.json").facts["handlers"]
    assert (row["frozen"], row["workers"], 60_000 < row["longest_ms"] < 200_000) == (1, 2, True)
    text = console.ask("/handlers").text
    assert "frozen in 1 of 2 workers" in text
    assert '<span class="under hot">one for 1 min' in text


def test_handlers_without_a_live_worker_keep_their_place(console: ConsoleThread, client: redis.Redis) -> None:
    """A handler of a worker that signed off, or that only the history has, is listed as one without a live worker."""
    enrol(client, "web-1", recent=RECENT)
    client.zadd(protocol.ENDED, {protocol.sign_off("web-2", 1, "drain", [("settle", "orders", "settle")])[3][3]: 1})
    client.xadd(TEN, {"v": 1, "text": '["handler","send","mails","send"] 1 0 5'})
    found = console.ask("/handlers.json").facts["handlers"]
    assert [(row["handler"], row["workers"], row["unknown"]) for row in found] == [
        ("send", 0, "no live worker runs it"), ("bill", 1, None), ("settle", 0, "no live worker runs it"),
    ]  # fmt: skip
    assert console.ask("/handlers").text.count("no live worker</span>") == 2
    one = console.ask("/handlers?key=mails&group=send&handler=send")
    assert (one.status, "Runs of send" in one.text, "no live worker</span>" in one.text) == (200, True, True)


@pytest.mark.parametrize(
    "recent",
    [7, {}, RECENT | {"runs": [-1]}, RECENT | {"runs": [True]}, RECENT | {"runs": [1] * 99}, RECENT | {"over_ms": 1e9},
     RECENT | {"handled": 2**70}, RECENT | {"runs": [HOSTILE]}],
)  # fmt: skip
def test_figures_that_no_worker_writes_are_unknown(recent: Any) -> None:
    """A forged or newer form of the figures is unknown; the rest of the record still counts."""
    sub = {
        "handler": "bill", "stream": "orders", "group": "billing", "consumer": "c1", "slots": 1, "running": 0,
        "buffered": 0, "handled": 0, "failed": 0, "dead": 0, "paused": None, "jobs": [], "recent": recent,
        "retried": HOSTILE,
    }  # fmt: skip
    about = {
        "id": "w", "host": "h", "pid": 1, "version": "1", "state": "running", "started_ms": 1, "beat_ms": 2,
        "bounds_ms": BOUNDS_MS, "subscribers": [sub], "last_error": None,
    }  # fmt: skip
    found = registry_facts.parse("w", json.dumps(about).encode())
    assert found is not None
    assert (found["subscribers"][0]["recent"], found["subscribers"][0]["retried"]) == (None, None)
    for bounds in (HOSTILE, [2, 1], [1, 1], [0, 1], ["1"], [float(n) for n in range(1, 99)], [inf], [True]):
        found = registry_facts.parse("w", json.dumps({**about, "bounds_ms": bounds}).encode())
        assert found is None or found["bounds_ms"] == []


def test_recent_runs_are_those_of_the_last_minutes() -> None:
    """A worker's report has the runs since a mark of about five minutes ago."""
    recent, durations, stats = RecentRuns(), Durations(), SubscriberStats()
    assert recent.facts(0, durations, stats) is None
    for second in range(0, 1200, 5):
        recent.note(second * 1000, durations, stats)
        durations.add(0.02)
        stats.handled += 1
    now = Now(0, 1_200_000)
    found = recent.facts(now.mono, durations, stats)
    assert found is not None
    assert WINDOW_MS <= int(str(found["over_ms"])) <= WINDOW_MS + 20_000
    assert found["handled"] == int(str(found["over_ms"])) // 5000
    assert found["runs"] == [0, 0, 0, 0, found["handled"]]


def test_a_percentile_is_interpolated_in_its_bucket() -> None:
    """A percentile lies between its bucket's bounds; above the last bound it is that bound."""
    assert percentile(Counter({1.0: 0, 10.0: 100, 100.0: 0}), 0.5) == 5.5
    assert percentile(Counter({1.0: 0, 10.0: 0, inf: 3}), 0.99) == 10.0
    assert percentile(Counter(), 0.5) is None
    assert len(BOUNDS) < 64


def test_an_id_leads_to_the_runs_of_its_entry(console: ConsoleThread, client: redis.Redis) -> None:
    """The search finds the streams with an entry of an id, or of its milliseconds, in one more round trip."""
    for key in ("orders", HOSTILE, "mails"):
        client.xadd(key, {"n": 1}, id="1795000000000-0")
    client.xadd("orders", {"n": 1}, id="1795000000005-3")
    for key in ("orders", HOSTILE, "mails"):
        client.xadd(key, {"n": 1}, id="1795000000009-0")
    line = console.process.watches[0].line
    console.ask("/search?q=orders")
    before = line.trips
    for words in ("1795000000005-3", "1795000000005", "%201795000000005-3%20"):
        answer = console.ask(f"/search?q={words}")
        assert 'href="/run?key=orders&amp;id=1795000000005-3">Runs of' in answer.text
        found = console.ask(f"/search.json?q={words}").facts
        assert found["entries"] == [{"stream": "orders", "id": "1795000000005-3"}]
    assert line.trips - before <= 12
    assert len(console.ask("/search.json?q=1795000000009-0").facts["entries"]) == 3
    for words, known in (("1795000000005-4", []), ("99999999999999999999-0", []), ("9" * 30, None), ("17-1", None)):
        assert console.ask(f"/search.json?q={words}").facts["entries"] == known
        assert console.ask(f"/search?q={words}").status == 200


def test_gone_workers_are_named_with_their_end(console: ConsoleThread, client: redis.Redis) -> None:
    """The page of workers lists those that signed off, with order and groups, and what a vanished process holds."""
    end = protocol.sign_off("web-2-7-abcdef", 1, "drain", [("bill", "orders", "billing")])[3][3]
    client.zadd(protocol.ENDED, {end: 1_800_000_000_000, b"\xff[": 2})
    client.zadd(protocol.INDEX, {"web-1-4711-abcdef": 1_763_721_600_000})
    text = console.ask("/workers").text
    assert 'href="/search?q=web-1-4711"' in text
    ended = text[text.index("Ended workers") :]
    assert "was drained" in ended
    assert 'href="/group?key=orders&amp;group=billing">billing on orders' in ended
    assert [row["id"] for row in console.ask("/workers.json").facts["ended"]] == ["web-2-7-abcdef"]


# -- one entry's runs -------------------------------------------------------------------------------------------------


def runs(console: ConsoleThread, entry: str) -> Any:
    """Return the facts of an entry's runs, and check that its page is there."""
    assert console.ask(f"/run?key=orders&id={entry}").status == 200
    return console.ask(f"/run.json?key=orders&id={entry}").facts


def test_a_timeline_has_what_the_server_and_its_workers_hold(console: ConsoleThread, client: redis.Redis) -> None:
    """A pending, a dead, a finished and an acknowledged run have their events, and the reasons for the gaps."""
    ids = [client.xadd("orders", {"n": n}).decode() for n in range(4)]
    for group in ("billing", "audit", "lazy", "acked"):
        client.xgroup_create("orders", group, id="$" if group == "lazy" else "0")
    client.execute_command("XGROUP", "SETID", "orders", "lazy", "0")
    client.xreadgroup("billing", "c1", {"orders": ">"}, count=1)
    client.xreadgroup("acked", "c1", {"orders": ">"}, count=1)
    client.xack("orders", "acked", ids[0])
    client.xclaim("orders", "billing", "c2", 0, [ids[0]])
    client.hset("millstream:{orders}:tries:billing", ids[0], '2:0:0:[[5,"c1","ValueError: no"],[9,null,null]]')
    client.hset(record.result_key("orders", ids[0]), "audit", record.record("done", 1_800_000_000_000, value=7))
    client.xreadgroup("audit", "c1", {"orders": ">"}, count=4)
    client.xack("orders", "audit", *ids)
    letter = DeadLetter((b"n", b"1"), "orders", ids[1], "audit", "c1", 3, "error", "ValueError: no", "", 1, 9, (),
                        (FailedTry(2, "c0", "TypeError: odd"),))  # fmt: skip
    client.xadd("orders:dead", dict(zip(*[iter(pack(letter))] * 2, strict=True)))
    found = runs(console, ids[0])
    groups = {one["group"]: one for one in found["groups"]}
    assert [one["event"] for one in found["events"]] == ["published"]
    assert [groups[name]["state"] for name in ("billing", "audit", "lazy", "acked")] == [
        "pending", "done", "undelivered", "passed",
    ]  # fmt: skip
    assert [(one["event"], one["worker"], one["text"]) for one in groups["billing"]["events"]] == [
        ("failed", "c1", "ValueError: no"), ("failed", "c1", "ValueError: no"),
        ("delivered", "c2", "the last of 2 deliveries"),
    ]  # fmt: skip
    assert groups["audit"]["events"][0]["text"] == "7"
    assert any("neither the time nor the consumer" in each for each in groups["acked"]["unknown"])
    assert groups["lazy"]["events"] == []
    dead = {one["group"]: one for one in runs(console, ids[1])["groups"]}["audit"]
    assert dead["state"] == "dead"
    assert [(one["event"], one["at_ms"], one["text"]) for one in dead["events"]] == [
        ("delivered", None, "3 deliveries, the last to this consumer"),
        ("failed", 2, "TypeError: odd"),
        ("dead", 9, "after 3 deliveries: ValueError: no"),
    ]
    assert (dead["events"][-1]["dead_letter_key"], dead["events"][-1]["worker"]) == ("orders:dead", "c1")
    assert [one["event"] for one in groups["acked"]["events"]] == ["passed"]


def test_a_timeline_bears_whatever_a_client_wrote(console: ConsoleThread, client: redis.Redis) -> None:
    """Forged records, results, changes and histories put neither elements nor control characters on the pages."""
    entry = client.xadd("orders", {"n": HOSTILE, "_dead.history": json.dumps([{"id": HOSTILE, "error": HOSTILE,
                                   "group": HOSTILE, "died_ms": -5, "returned_ms": 2**62}])}).decode()  # fmt: skip
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", HOSTILE, {"orders": ">"})
    client.hset("millstream:{orders}:tries:billing", entry, "1:0:0:" + json.dumps([[5, HOSTILE, HOSTILE]]))
    end = {"state": "done", "value": HOSTILE, "at_ms": HOSTILE, "tries": [[2**52, HOSTILE, HOSTILE * 99]]}
    client.hset(record.result_key("orders", entry), "billing", json.dumps(end))
    client.zadd(record.cancelled_key("orders", "billing"), {entry: inf})
    client.xadd("millstream:audit", {"stream": "orders", "group": "", "action": HOSTILE, "who": HOSTILE, "line": entry})
    client.xadd("orders:dead", {"_dead.fields": HOSTILE})
    job = {"id": entry, "since_ms": 5, "deliveries": 1}
    enrol(client, HOSTILE, handler=HOSTILE, jobs=[job], limits=[], recent=RECENT)
    found = runs(console, entry)
    assert {"died before", "put back", "published"} == {one["event"] for one in found["events"]}
    pages = [f"/run?key=orders&id={entry}", "/handlers", f"/entry?key=orders&id={entry}", "/workers"]
    pages.append(f"/handlers?key=orders&group=billing&handler={quote(HOSTILE)}")
    for path in pages:
        page = console.ask(path)
        assert (path, page.status) == (path, 200)
        assert "<script>alert" not in page.text
        assert "\x1b" not in page.text
    client.delete("orders:dead", "millstream:audit")
    client.set("orders:dead", "x")
    assert any("orders:dead" in each for each in runs(console, client.xadd("orders", {"n": 1}).decode())["unknown"])


def test_a_timeline_reads_no_more_than_its_limits(console: ConsoleThread, client: redis.Redis) -> None:
    """Among many letters and changes only the first and last are read, and the page says so."""
    entry = client.xadd("orders", {"n": 1}, id="1700000000000-0").decode()
    client.xgroup_create("orders", "billing", id="0")
    pipe = client.pipeline(transaction=False)
    for number in range(450):
        pipe.xadd("orders:dead", {"n": number})
        pipe.xadd("millstream:audit", {"stream": "orders"})
    pipe.execute()
    found = runs(console, entry)
    assert any("200 letters of orders:dead were looked at" in each for each in found["unknown"])


def test_no_report_makes_the_page_of_a_group_long(console: ConsoleThread, client: redis.Redis) -> None:
    """A worker that reports very many handlers, or a job of another form, changes the page's length and text little."""
    client.xadd("orders", {"n": 1}, id="1-0")
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", "c1", {"orders": ">"})
    enrol(client, "web-0", jobs=[{"id": HOSTILE, "since_ms": 1, "deliveries": 1}])
    for number in range(100):
        enrol(client, f"web-{number + 1}", handler=f"h{number}")
    assert "\x1b" not in console.ask("/group?key=orders&group=billing").text
    history = console.ask("/group.json?key=orders&group=billing").facts["history"]
    assert len({one["chart"] for one in history["figures"] if one["chart"].startswith("Runs of ")}) == 20
