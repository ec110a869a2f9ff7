"""A job on the page of its entry, with the form that cancels it."""

import json
from urllib.parse import urlencode

import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.client.jobs import record
from support.console import ConsoleThread
from web.test_schedules import HOSTILE, confirmed


def test_an_entry_shows_its_job_and_cancels_it(changing: ConsoleThread, client: redis.Redis) -> None:
    """An entry's page shows its job's state, progress and result by group, escaped, and cancels it."""
    for group in ("a", "b"):
        client.xgroup_create("orders", group, mkstream=True)
    plain = client.xadd("orders", {"n": 1}).decode()
    field, wanted = record.trailer(record.WantedResult(3_600_000, "ab"))
    job = client.xadd("orders", {b"n": b"1", field: wanted}).decode()
    end = record.record("done", 1_700_000_000_000, value=HOSTILE)
    client.hset(record.result_key("orders", job), mapping={"a": end, "progress:b": '{"at":40}'})
    changing.forget()
    assert "<h2>Job</h2>" not in changing.ask(f"/entry?key=orders&id={plain}").text
    page = changing.ask(f"/entry?key=orders&id={job}")
    assert (page.status, "<h2>Job</h2>" in page.text, "<script>alert" in page.text) == (200, True, False)
    rows = {row["group"]: row for row in changing.ask(f"/entry.json?key=orders&id={job}").facts["job"]}
    assert (rows["a"]["state"], rows["a"]["value"]) == ("done", HOSTILE)
    assert (rows["b"]["state"], rows["b"]["progress"]) == ("queued", {"at": 40})
    words = {"do": "job cancel", "key": "orders", "group": "b", "id": job}
    changing.ask(f"/change?{urlencode(words)}")
    assert not client.exists(record.cancelled_key("orders", "b"))
    confirmed(changing, **words)
    assert client.zscore(record.cancelled_key("orders", "b"), job) is not None


def test_a_huge_result_is_left_out(console: ConsoleThread, client: redis.Redis) -> None:
    """A result above the limit of bytes is not read, and neither are fields of no group. All state it."""
    for group in ("a", "b"):
        client.xgroup_create("orders", group, mkstream=True)
    field, wanted = record.trailer(record.WantedResult(3_600_000, "ab"))
    job = client.xadd("orders", {b"n": b"1", field: wanted}).decode()
    end, huge = record.record("done", 1_700_000_000_000, value=7), "x" * 20_000_000
    client.hset(record.result_key("orders", job), mapping={"a": end, "b": huge, "progress:a": huge, "other": huge})
    before = client.info("stats")["total_net_output_bytes"]
    rows = {row["group"]: row for row in console.ask(f"/entry.json?key=orders&id={job}").facts["job"]}
    assert (rows["a"]["value"], rows["a"]["progress"], rows["b"]["value"]) == (7, None, None)
    assert "left out: 20.0 MB" in console.ask(f"/entry?key=orders&id={job}").text
    shown = CliRunner().invoke(
        main, ["job", "show", "orders", job, "-o", "json", "--url", console.settings.servers[0].url]
    )
    assert [row["left_out_bytes"] for row in json.loads(shown.stdout)["groups"]] == [20_000_000, 20_000_000]
    groups = console.ask(f"/run.json?key=orders&id={job}").facts
    assert [one for one in groups["unknown"] if "left out" in one] == [
        f"The result in {group!r} is left out: it has 20,000,000 bytes." for group in ("a", "b")
    ]
    assert client.info("stats")["total_net_output_bytes"] - before < 1_000_000
