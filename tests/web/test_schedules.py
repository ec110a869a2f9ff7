"""Schedules on the pages: a stream's waiting ones, recurring ones, and forms that change them."""

import html
import re
import time
from urllib.parse import urlencode

import pytest
import redis

from millstream.client.later import schedule
from millstream.client.later.recurring import KEY, Recurring
from millstream.client.later.timetable import timetable
from support.console import Answer, ConsoleThread
from support.waiting import eventually

NOW = int(time.time() * 1000)
HOSTILE = "<script>alert(1)</script>\"'\x1b[2J\n"


def wait(client: redis.Redis, ident: str, at_ms: int, *words: str) -> None:
    """Add a schedule to ``mails``."""
    client.hset(schedule.content_key("mails"), ident, b"-:" + schedule.packed(["*", *words]))
    client.zadd(schedule.due_key("mails"), {ident: at_ms})


def confirmed(console: ConsoleThread, **words: str) -> Answer:
    """Preview a change, and confirm it as shown."""
    page = console.ask(f"/change?{urlencode(words)}")
    inside = page.text.partition('<form class="confirm"')[2]
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', inside)
    assert found, page.text
    body = urlencode({name: html.unescape(value) for name, value in found}).encode()
    return console.ask("/change", method="POST", body=body, origin=console.address)


def test_a_stream_shows_what_waits_for_its_time(changing: ConsoleThread, client: redis.Redis) -> None:
    """A stream's page shows the next ten schedules, their number, and the first one's delay, escaped."""
    client.xadd("mails", {"n": 1})
    changing.forget()
    assert "<h2>Scheduled</h2>" not in changing.ask("/stream?key=mails").text
    wait(client, HOSTILE, NOW - 3_600_000, HOSTILE, HOSTILE)
    for number in range(12):
        wait(client, f"s{number}", NOW + 3_600_000 + number, "n", str(number))
    changing.forget()
    page = changing.ask("/stream?key=mails")
    assert page.status == 200
    assert "13 entries wait" in page.text
    assert "the first is overdue by 1 h" in page.text
    assert "<script>alert" not in page.text
    assert "\x1b" not in page.text
    assert ("s8" in page.text, ">s9<" in page.text) == (True, False)
    facts = changing.ask("/stream.json?key=mails").facts["scheduled"]
    assert (facts["waiting"], len(facts["first"])) == (13, 10)
    client.set(schedule.due_key("mails"), "x")
    changing.forget()
    assert changing.ask("/stream?key=mails").status == 200


@pytest.mark.parametrize("words", [{"do": "later cancel"}, {"do": "later fire"}, {"do": "later move", "delay": "2h"}])
def test_a_schedule_is_changed_by_a_form(changing: ConsoleThread, client: redis.Redis, words: dict[str, str]) -> None:
    """A schedule's preview changes nothing, and its form makes the previewed change."""
    client.xadd("mails", {"n": 1})
    wait(client, "a", NOW + 3_600_000, "n", "2")
    before = client.zscore(schedule.due_key("mails"), "a")
    changing.ask(f"/change?{urlencode({**words, 'key': 'mails', 'ids': 'a'})}")
    assert client.zscore(schedule.due_key("mails"), "a") == before
    confirmed(changing, key="mails", ids="a", **words)
    assert client.zscore(schedule.due_key("mails"), "a") != before
    assert client.xlen("mails") == (2 if words["do"] == "later fire" else 1)


def test_recurring_schedules_have_a_page_where_there_are_any(changing: ConsoleThread, client: redis.Redis) -> None:
    """Recurring schedules have a page, linked only if there are any. It can pause one, and marks damaged ones."""
    changing.forget()
    assert "/schedules" not in changing.ask("/").text
    one = Recurring("nightly", timetable("nightly", "0 3 * * *"), "mails", (b"*", b"n", b"1"))
    client.hset(KEY, "nightly", one.to_json())
    client.hset(KEY, HOSTILE, HOSTILE)
    changing.forget()
    eventually(lambda: 'href="/schedules"' in changing.ask("/").text)  # a slow page begins before its status is known
    page = changing.ask("/schedules")
    assert (page.status, "0 3 * * * (UTC)" in page.text, "damaged" in page.text) == (200, True, True)
    assert "<script>alert" not in page.text
    assert [row["schedule"] for row in changing.ask("/schedules.json").facts["schedules"]] == sorted(
        [HOSTILE, "nightly"]
    )
    confirmed(changing, do="schedule pause", schedule="nightly")
    assert client.hget(schedule.placed_key("mails"), "paused:nightly") == b"1"
