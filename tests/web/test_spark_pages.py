"""The pages on Spark: queries, their positions beside groups, and the archive."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from millstream.server.thread import ServerThread
from millstream.spark.archiving import manifest as manifests
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile
from millstream.spark.model.keys import record
from millstream.spark.model.offsets import Id
from millstream.spark.monitoring import store
from support.console import ConsoleThread

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\N{RIGHT-TO-LEFT OVERRIDE}"


def told(client: redis.Redis, ident: str, *, alive: bool = True, **facts: Any) -> None:
    """Write a query's record."""
    whole = {**store.NEW, "id": ident, "driver": f"driver of {ident}", "at_ms": 1_000, **facts}
    client.hset(store.QUERIES, ident.encode(errors="backslashreplace"), json.dumps(whole))
    if alive:
        client.set(store.driver_key(str(whole["driver"])).encode(errors="backslashreplace"), 1)


def place(stream: str, at: str, n: int, latest: int) -> dict[str, Any]:
    return {"stream": stream, "id": at, "n": n, "latest_n": latest}


def test_queries_are_shown_the_lost_ones_first(console: ConsoleThread, client: redis.Redis) -> None:
    """A query with a killed driver is shown as lost, first. The page counts stopped ones, and JSON has all facts."""
    assert "No query has reported" in console.ask("/spark").text
    told(client, "q1", name="lake", rows_per_second=12.5, phases={"addBatch": 5})
    told(client, "q2", name="windows", alive=False)
    console.forget()
    text = console.ask("/spark").text
    assert "1 query does not run" in text
    assert text.index("windows") < text.index("lake")
    found = console.ask("/spark.json").facts["queries"]
    assert [(one["name"], one["state"]) for one in found] == [("windows", "gone"), ("lake", "running")]
    assert found[1]["phases"] == {"addBatch": 5}


def test_a_query_that_runs_again_is_counted_once(console: ConsoleThread, client: redis.Redis) -> None:
    """A query's earlier lost run is not counted if a later run of the same name is running."""
    told(client, "q1", name="lake", state="failed", error="Bad: x")
    told(client, "q2", name="lake")
    console.forget()
    text = console.ask("/spark").text
    assert ("1 query runs" in text, "not run" in text, 'class="hot"' in text) == (True, False, False)
    told(client, "q3", alive=False)
    console.forget()
    text = console.ask("/spark").text
    assert "1 query does not run" in text
    assert [one["id"] for one in console.ask("/spark.json").facts["queries"]] == ["q3", "q1", "q2"]


def test_what_a_program_is_to_say_has_no_stars_for_a_password(data: ServerThread, client: redis.Redis) -> None:
    """Program snippets take a URL with a password from a variable, and command lines name a context."""
    client.acl_setuser("driver", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"])
    with ConsoleThread(data.url.replace("://", "://driver:pw@")) as guarded:
        text = guarded.ask("/spark").text
        shell = guarded.ask("/spark.json").facts["shell"]
    client.acl_deluser("driver")
    assert 'millstream.spark.watch(spark, os.environ["MILLSTREAM_URL"])' in text
    assert shell == ["millstream spark ls --context NAME"]


def test_a_lost_query_is_found_on_the_overview(console: ConsoleThread, client: redis.Redis) -> None:
    """A lost query is on the overview for a day, unless its name runs again. So is a query without progress."""
    for ms in range(1, 4):
        client.xadd("orders", {"n": ms}, id=f"{ms}-0")
    now = time.time_ns() // 1_000_000
    behind = [place("orders", "1-0", 1, 1)]
    told(client, "q1", name="dead", state="failed", error="Bad: x", at_ms=now, places=behind)
    told(client, "q2", name="killed", alive=False, at_ms=now - 60_000)
    told(client, "q3", name="long ago", alive=False, at_ms=now - 2 * 86_400_000)
    told(client, "q4", name="again", alive=False, at_ms=now)
    told(client, "q5", name="again", at_ms=now)
    told(client, "q6", name="still", at_ms=now - 400_000, places=behind)
    told(client, "q7", name="has all", at_ms=now - 400_000, places=[place("orders", "3-0", 3, 3)])
    told(client, "q8", name="slow", at_ms=now - 400_000, places=behind, recent=[[0, *[1] * 5], [200_000, *[1] * 5]])
    console.forget()
    found = [one for one in console.ask("/overview.json").facts["findings"] if one["query"] is not None]
    assert [(one["code"], one["query"], one["level"]) for one in found] == [
        ("lost-query", "q1", "problem"), ("lost-query", "q2", "problem"), ("still-query", "q6", "warning"),
    ]  # fmt: skip
    assert "spark show q1" in found[0]["remedy"]
    text = console.ask("/").text
    assert '<a href="/query?id=q1">query dead</a>' in text
    assert "failed: Bad: x" in text


def test_a_query_stands_on_one_axis_with_the_groups_of_its_stream(console: ConsoleThread, client: redis.Redis) -> None:
    """A query and the groups of its stream share one axis, on the pages of the query, of Spark and of the stream."""
    for ms in range(1, 21):
        client.xadd("orders", {"n": ms}, id=f"{ms * 1000}-0")
    client.xgroup_create("orders", "billing", id="5000-0")
    told(client, "q1", name="lake", places=[place("orders", "15000-0", 15, 20)])
    for path in ("/spark", "/query?id=q1", "/stream?key=orders"):
        text = console.ask(path).text
        assert (path, "lake (Spark): Spark query, 5 behind" in text, "billing: " in text) == (path, True, True)


def test_a_query_tells_what_it_wrote_into_streams(console: ConsoleThread, client: redis.Redis) -> None:
    """A query's page shows from its commit record if a batch is not completely published.

    An invalid record is skipped.
    """
    told(client, "q1")
    for kept, said in [
        ({"version": 7, "parts": None}, "batch 7, published whole"),
        ({"version": 8, "parts": [["totals", "key", 2, 9, "1-0", "9-0"]]}, "batch 8 is not completely published yet"),
        ({"version": "x", "parts": None}, "nothing"),
        ([], "nothing"),
        ({"version": 8, "parts": [["\ud800"]]}, "nothing"),
    ]:
        client.set(record("q1"), json.dumps(kept))
        console.forget()
        assert (kept, said in console.ask("/query?id=q1").text) == (kept, True)


def test_whatever_stands_in_a_report_does_nothing(console: ConsoleThread, client: redis.Redis) -> None:
    """Hostile names, errors and phases in a query's record are escaped. A foreign record is skipped."""
    client.xadd(HOSTILE, {"n": 1}, id="1-0")
    told(
        client,
        HOSTILE,
        **dict.fromkeys(("name", "host", "error", "run"), HOSTILE),
        phases={HOSTILE: 1},
        places=[place(HOSTILE, "1-0", 1, 1)],
        recent=[[ms * 1000, 1, 2, 3, 4, 5] for ms in range(3)],
    )
    told(client, "\ud800")
    client.hset(store.QUERIES, "huge", json.dumps({**store.NEW, "id": "huge", "driver": "d", "lag": 10**400}))
    assert console.ask("/spark.json").facts["found"] == 2
    for path in ("/spark", f"/query?id={quote(HOSTILE, safe='')}", "/query?id=%5Cud800"):
        answer = console.ask(path)
        assert (path, answer.status) == (path, 200)
        assert "<img" not in answer.text
        assert "\x1b" not in answer.text
    assert console.ask("/query?id=huge").status == 404
    client.set(store.QUERIES, "no hash")
    console.forget()
    assert "Not known" in console.ask("/spark").text
    assert console.ask("/stream?key=" + quote(HOSTILE, safe="")).status == 200


@pytest.fixture
def archived(data: ServerThread, client: redis.Redis, tmp_path: Path) -> Path:
    """An archive of a stream of thirty entries with the first ten archived and five of them trimmed."""
    for ms in range(1, 31):
        client.xadd("orders", {"n": ms}, id=f"{ms}-0")
    client.xgroup_create("orders", "billing", id="7-0")
    client.xtrim("orders", minid="6-0", approximate=False)
    file = DataFile(
        f"stream=orders/date=2026-01-01/hour=00/run1-000001-{HOSTILE}.parquet", "orders", Id(1, 0), Id(10, 0), 10, 900
    )
    places = {"orders": ArchivePosition(Id(10, 0), 10), "gone": ArchivePosition(Id(1, 0), 1)}
    (tmp_path / "_manifest.json").write_text(manifests.dump(ArchiveManifest(3, places, (file,))))
    return tmp_path


def test_the_last_archived_entry_is_held_by_who_has_it_pending(
    data: ServerThread, client: redis.Redis, archived: Path
) -> None:
    """A pending entry keeps the last archived entry from being trimmed, and the page names the group."""
    client.xgroup_setid("orders", "billing", "9-0")
    client.xreadgroup("billing", "c1", {"orders": ">"})
    client.xtrim("orders", minid="10-0", approximate=False)
    with ConsoleThread(data.url, archive=archived) as console:
        orders = console.ask("/archive.json").facts["streams"][1]
    assert (orders["kept"], orders["held_by"]) == (1, "billing has 10-0 pending")


def test_an_archive_is_shown_beside_its_streams(data: ServerThread, archived: Path) -> None:
    """The archive page shows waiting and archived entries, the group that keeps them in the stream, and the files."""
    with ConsoleThread(data.url, archive=archived) as console:
        page = console.ask("/archive")
        gone, orders = console.ask("/archive.json").facts["streams"]
        assert (orders["entries"], orders["waiting"], orders["kept"]) == (10, 20, 5)
        assert orders["held_by"] == "billing has read up to 7-0"
        assert (gone["waiting"], "no stream" in gone["why"]) == (None, True)
        assert "billing has read up to 7-0" in page.text
        assert f"--to {archived} --dry-run" in page.text
        assert "<img" not in page.text
        assert 'href="/archive"' in console.ask("/").text
        (archived / "_manifest.json").write_text('{"format": 2}')
        console.forget()
        assert "damaged" in console.ask("/archive").text


def test_a_stream_s_page_draws_how_far_it_is_archived(data: ServerThread, archived: Path) -> None:
    """A stream's page draws the archive's position beside its groups. Without an archive there is no row."""
    with ConsoleThread(data.url, archive=archived) as console:
        with redis.Redis.from_url(data.url) as client:
            client.xadd("other", {"n": 1})
            client.xgroup_create("other", "billing", id="0")
        page = console.ask("/stream?key=orders").text
        assert "archive: 20 not archived" in page
        assert "archive: " not in console.ask("/stream?key=other").text


def test_the_archive_is_drawn_whatever_crowd_reads_the_stream(
    data: ServerThread, client: redis.Redis, archived: Path
) -> None:
    """A diagram with too many groups keeps the archive and the queries, and counts the omitted readers."""
    for number in range(25):
        client.xgroup_create("orders", f"group{number}", id="0")
    told(client, "q1", name="lake", places=[place("orders", "15-0", 15, 20)])
    with ConsoleThread(data.url, archive=archived) as console:
        page = console.ask("/stream?key=orders").text
    drawn = page[page.index("<svg") : page.index("<table")]
    assert "archive: 20 not archived" in drawn
    assert "lake (Spark): " in drawn
    assert ">and 8 more<" in drawn


def test_a_stream_without_groups_draws_its_archive(data: ServerThread, client: redis.Redis, archived: Path) -> None:
    """The diagram of a stream without groups shows the archive."""
    client.xgroup_destroy("orders", "billing")
    with ConsoleThread(data.url, archive=archived) as console:
        page = console.ask("/stream?key=orders").text
    assert "archive: 20 not archived" in page
    assert "No group reads it." in page


def test_without_an_archive_the_page_says_how_to_have_one(console: ConsoleThread, client: redis.Redis) -> None:
    """Without an archive the archive page explains how to make one, and no page links to it."""
    answer = console.ask("/archive")
    assert (answer.status, "--archive DIR" in answer.text) == (404, True)
    assert 'href="/archive"' not in console.ask("/").text
