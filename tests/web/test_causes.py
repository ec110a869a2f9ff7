"""Causes and alerts on the pages: one card for a frozen worker, in a real browser at 1440 and 390 pixels."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import redis

from millstream.client.alerts import store
from millstream.ops.alerts.status import Alert, AlertEvent, words_of
from millstream.server.thread import ServerThread
from support.console import ConsoleThread
from support.frozen import WORKER, freeze
from support.needs import lacking, package

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "<img src=x onerror=document.title='run'>"
TITLE = f"he worker {WORKER} is blocked at {HOSTILE}.py:7 in {HOSTILE}: its event loop does not run"
AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def add(client: redis.Redis, event: AlertEvent) -> None:
    words = words_of(event)
    client.xadd(store.KEY, dict(zip(words[::2], words[1::2], strict=True)))


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[ServerThread, ConsoleThread]]:
    """A server, and a read-only console over it."""
    with ServerThread() as server, ConsoleThread(server.url) as console:
        yield server, console


@pytest.fixture
def scene(stage: tuple[ServerThread, ConsoleThread]) -> ConsoleThread:
    """The console over a worker frozen three minutes ago, and alerts, all with names that try to run as script."""
    server, console = stage
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        freeze(client, handler=HOSTILE)
        for number in range(7):
            alert = Alert(f"a{number}", "x", "problem", f"{HOSTILE} {number}", 1000, 2000 + number, None, (HOSTILE,))
            add(client, AlertEvent("opened", alert))
            if number:
                add(client, AlertEvent("closed", Alert(*_fields(alert)[:6], 63_000, (HOSTILE,))))
    console.forget()
    return console


def _fields(alert: Alert) -> tuple[object, ...]:
    return alert.id, alert.code, alert.level, alert.says, alert.since_ms, alert.opened_ms


@pytest.fixture(scope="module")
def tab() -> "Iterator[Page]":
    """A tab of the system's Chromium in headless mode."""
    api = package("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        lacking("no chromium on PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser.new_page()
        browser.close()


def test_seventeen_findings_of_a_frozen_worker_are_one_problem(scene: ConsoleThread) -> None:
    """The overview and its twin have one cause for seventeen findings, with sums over the partitions."""
    facts = json.loads(scene.ask("/overview.json").body)
    (cause,) = facts["causes"]
    assert (cause["kind"], cause["code"], cause["level"], cause["findings"]) == (
        "worker",
        "blocked-worker",
        "problem",
        17,
    )
    assert {one["cause"] for one in facts["findings"]} == {cause["id"]}
    assert len(facts["findings"]) == 17
    billing, send = cause["affects"]
    assert (billing["stream"], billing["partitions"], billing["pending"], send["pending"]) == ("orders", 16, 48, 3)
    assert "<h1>1 problem needs attention</h1>" in re.sub(r"\s+", " ", scene.ask("/").text).replace("> ", ">")
    server = json.loads(scene.ask("/server.json").body)
    assert [one["id"] for one in server["causes"]] == [cause["id"]]


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("path", ["/", "/server"])
def test_a_cause_is_a_card_and_runs_nothing(tab: "Page", scene: ConsoleThread, path: str, width: int) -> None:
    """A card has what, since, what it holds up and the command, at each width, and what a client wrote does not run."""
    axe = package("axe_core_python.sync_playwright").Axe()
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto(scene.address + path)
    card = tab.locator("li.finding.problem")
    assert card.count() == 1
    text = card.inner_text()
    for words in (TITLE, "Since", "3 min ago", "billing on orders: 48 pending, in 16 partitions", "worker show"):
        assert words in text
    assert "orders{3}" not in text
    card.locator("summary", has_text="It explains 16 more findings").click()
    assert card.locator(".effects li", has_text="billing on orders{3}").is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    found = axe.run(tab, options={"runOnly": AA})
    assert [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in found["violations"]] == []
    assert tab.title() != "run"


def test_past_alerts_are_listed(tab: "Page", scene: ConsoleThread) -> None:
    """A read-only console lists alerts, the open one first, with time and duration; their page has all, by day."""
    tab.goto(scene.address + "/")
    tab.click("summary:has-text('1 open, 6 closed')")
    rows = tab.locator("[data-key='card alerts'] tbody tr")
    assert rows.count() == 5
    assert "open" in rows.first.inner_text()
    assert f"{HOSTILE} 6" in rows.nth(1).inner_text()
    tab.click("text=2 earlier")
    tab.wait_for_url("**/alerts")
    rows = tab.locator("[data-key='card alerts'] tbody tr")
    assert rows.count() == 7
    assert "1 min" in rows.nth(1).inner_text()
    tab.click("text=Yesterday")
    tab.wait_for_url("**day=*")
    assert tab.locator("tbody tr").count() == 1, "the open one began long ago and still lasts"
    for words, found in (("day=1970-01-01", 7), ("day=1969-12-31", 0), ("day=gestern", 7)):
        assert scene.ask(f"/alerts.json?{words}").facts["found"] == found
    assert "The day is invalid" in scene.ask("/alerts?day=gestern").text
    twin = json.loads(scene.ask("/alerts.json").body)
    assert (len(twin["alerts"]), twin["alerts"][1]["for_ms"], twin["alerts_unknown"]) == (7, 62_000, None)


def test_long_lists_are_paged(console: ConsoleThread, client: redis.Redis) -> None:
    """The page of alerts has 25 on a page, with links; the server's page has ten slow commands and a link to all."""
    for number in range(60):
        add(client, AlertEvent("closed", Alert(f"a{number}", "x", "problem", f"says {number}", 1, 2000 + number, 3000)))
    for path, first, last in (("/alerts", 59, 35), ("/alerts?page=3", 9, 0)):
        text = console.ask(path).text
        assert [f"says {number}<" in text for number in (first + 1, first, last, last - 1)] == [
            False,
            True,
            True,
            False,
        ]
    assert "26 to 50 of 60" in console.ask("/alerts?page=2").text
    kept = client.config_get("slowlog-log-slower-than")["slowlog-log-slower-than"]
    client.config_set("slowlog-log-slower-than", 0)
    try:
        for _ in range(12):
            client.ping()
    finally:
        client.config_set("slowlog-log-slower-than", kept)
    assert console.ask("/server").text.count('data-key="slow') == 10
    assert console.ask("/server?slow=all").text.count('data-key="slow') > 10
