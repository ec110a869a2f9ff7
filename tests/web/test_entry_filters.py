"""Conditions on a stream's page: bounded searches that can be continued, exported and shared."""

import html
import re

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.client.line import Line
from millstream.ops.payloads.shown import CUT, LIGHT
from millstream.server.thread import ServerThread
from millstream.web import entries as found
from millstream.web.entries import window
from support.console import ConsoleThread


@pytest.fixture
def orders(client: redis.Redis, console: ConsoleThread) -> redis.Redis:
    """A hundred entries, every tenth with status failed."""
    for number in range(1, 101):
        status = "failed" if number % 10 == 0 else "ok"
        client.xadd("orders", {"amount": number, "status": status, "user": '{"city": "=Graz"}'}, id=f"{number}-0")
    console.forget()
    return client


def ids(console: ConsoleThread, query: str) -> list[str]:
    return [each["id"] for each in console.ask(f"/stream.json?key=orders&{query}").facts["entries"]]


def test_conditions_are_those_of_the_shell(console: ConsoleThread, orders: redis.Redis) -> None:
    """A page applies --where, --grep and a time together, and prints a command line with them."""
    assert ids(console, "where=status%3Dfailed%20and%20amount%3E50") == ["100-0", "90-0", "80-0", "70-0", "60-0"]
    assert ids(console, "where=status%3Dfailed&order=oldest&to=30-0") == ["10-0", "20-0", "30-0"]
    assert ids(console, "grep=GRAZ&count=2") == ["100-0", "99-0"]
    assert ids(console, "where=user.city%3D%22%3DGraz%22&from=99-0") == ["100-0", "99-0"]
    facts = console.ask("/stream.json?key=orders&where=amount%3E50").facts
    assert "--where 'amount>50'" in facts["shell"][1]
    wrong = console.ask("/stream?key=orders&where=amount%20%3E")
    assert (wrong.status, "the value after" in html.unescape(wrong.text)) == (400, True)


def test_a_search_has_a_bound_and_goes_on(
    console: ConsoleThread, orders: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search reads a bounded number of entries, reports it, and continues where it ended."""
    monkeypatch.setattr(found, "LOOKED_AT", 30)
    path, seen, pages = "/stream?key=orders&where=status%3Dfailed", list[str](), 0
    while path:
        text = html.unescape(console.ask(path).text)
        seen += re.findall(r'<a class="id" href="[^"]*">(\d+-0)</a>', text)
        assert re.search(r"Looked at (30|10) entries, (3 fit|1 fits)", text)
        again = re.search(r'href="([^"]*)">go on</a>', text)
        path, pages = again[1] if again else "", pages + 1
    assert (seen, pages) == ([f"{number}-0" for number in range(100, 0, -10)], 4)


def test_a_page_is_had_as_a_file(console: ConsoleThread, orders: redis.Redis) -> None:
    """A page's export has the same bytes as the shell's. A CSV cell cannot be a formula."""
    orders.xadd("orders", {"=cmd()": "=1+1", "x": b"\xff", "note": "\x1b[2J"}, id="200-0")
    for kind in ("jsonl", "csv"):
        answer = console.ask(f"/stream.{kind}?key=orders&from=91-0&order=oldest")
        words = ["stream", "tail", "orders", "--after", "90-9", "-o", kind, "--url", console.settings.servers[0].url]
        assert (answer.status, answer.text) == (200, CliRunner().invoke(main, words).stdout)
        assert answer.headers["content-disposition"] == f'attachment; filename="entries.{kind}"'
    assert len(console.ask("/stream.jsonl?key=orders&where=status%3Dfailed&count=4").text.splitlines()) == 4
    missing = console.ask("/stream.csv?key=nope")
    assert (missing.status, "there is no stream" in missing.text) == (404, True)
    stranger = console.ask("/stream.csv?key=orders", sec_fetch_site="cross-site", sec_fetch_mode="no-cors")
    assert stranger.status == 403


def test_an_address_can_be_shared(console: ConsoleThread, orders: redis.Redis) -> None:
    """A shared address shows the same entries with its conditions after more were added."""
    text = html.unescape(console.ask("/stream?key=orders&where=status%3Dfailed&count=3").text)
    pinned = re.search(r'href="([^"]*)">an address that shows just these', text)
    assert pinned is not None
    orders.xadd("orders", {"status": "failed"}, id="101-0")
    console.forget()
    shown = console.ask(pinned[1].replace("/stream?", "/stream.json?")).facts["entries"]
    assert [each["id"] for each in shown] == ["100-0", "90-0", "80-0"]


async def test_what_is_kept_of_a_page_has_no_long_values(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """A cached reading of a page holds shortened values, and an export has the full ones."""
    client.xadd("orders", {"n": "x" * 100_000})
    line = Line(data.url)
    try:
        kept = await found.listed_entries(line, "orders", window({}, 0, 50), found.EntrySearch())
    finally:
        await line.close()
    assert [len(value) for one in kept.entries for _, value in one.fields] == [LIGHT + len(CUT)]
    assert len(console.ask("/stream.jsonl?key=orders").body) > 100_000
