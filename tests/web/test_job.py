"""A job on the page of its entry, with the form that cancels it."""

from urllib.parse import urlencode

import redis

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
