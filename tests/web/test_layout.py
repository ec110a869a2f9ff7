"""The layout of the pages in a browser: their height, narrow screens, rows that stay still, and folded streams."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import redis

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.later import schedule
from millstream.client.later.recurring import KEY
from millstream.spark.monitoring import store
from millstream.worker.registry import protocol
from support.console import ConsoleThread
from support.enrolled import RECENT, enrol
from support.needs import lacking, package
from support.partitioned import partition
from support.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATHS = {
    "overview": "/",
    "stream": "/stream?key=orders",
    "group": "/group?key=orders&group=billing",
    "entry": "/entry?key=orders&id=1-0",
    "entry aside": "/entry?key=orders&id=1-0&aside=billing",
    "dead": "/dead?key=orders:dead",
    "dead letter streams": "/dead",
    "letter": "/letter?key=orders:dead&id=400-0",
    "handlers": "/handlers",
    "alerts": "/alerts",
    "changes": "/changes",
    "handler": "/handlers?key=s1&group=g&handler=h1",
    "runs": "/run?key=orders&id=1-0",
    "runs in many groups": "/run?key=divided{0}&id=1-0",
    "partitioned stream": "/stream?key=divided",
    "partition": "/stream?key=divided{0}",
    "queries": "/spark",
    "query": "/query?id=q0",
    "workers": "/workers",
    "schedules": "/schedules",
    "search": "/search?q=s",
    "preview": "/change?do=dead+rm&key=orders:dead&all=1",
}
TALLEST = 2000


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """The system's Chromium in headless mode."""
    api = package("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        lacking("no chromium on PATH")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path)
        yield found
        found.close()


def divide(client: redis.Redis, url: str, now: int) -> None:
    """Add a partitioned stream with many groups, pending entries and schedules."""
    pipe = client.pipeline(transaction=False)
    with ThreadPoolExecutor() as other:  # this thread runs the loop of the browser
        other.submit(partition, url, "divided", 4).result()
    for part in range(4):
        for number in range(1, 30):
            pipe.xadd(f"divided{{{part}}}", {"n": number}, id=f"{number}-0")
        for group in range(30):
            pipe.xgroup_create(f"divided{{{part}}}", f"group {group}", id="0")
        pipe.xreadgroup(f"group {part}", "c", {f"divided{{{part}}}": ">"})
    for key in ("divided", "divided{0}"):
        for number in range(20):
            pipe.hset(schedule.content_key(key), f"{number}", b"-:" + schedule.packed(["*", "n", "1"]))
            pipe.zadd(schedule.due_key(key), {f"{number}": now + 3_600_000 + number})
    pipe.execute()


def report_queries(client: redis.Redis) -> None:
    """Add running queries that read many streams."""
    pipe = client.pipeline(transaction=False)
    for number in range(30):
        places = [{"stream": f"s{each}", "id": "1-0", "n": 1, "latest_n": 2} for each in range(number, number + 12)]
        recent = [[second * 1000, 1, second, 3, 4, 5] for second in range(9)]
        facts = {"id": f"q{number}", "driver": "d", "state": "running", "places": places, "recent": recent}
        pipe.hset(store.QUERIES, f"q{number}", json.dumps({**store.NEW, **facts, "phases": {"addBatch": 5}}))
    pipe.set(store.driver_key("d"), 1)
    pipe.execute()


@pytest.fixture(scope="module")
def crowded(data) -> Iterator[ConsoleThread]:
    """A console that may make changes, over much of everything."""
    now = time.time_ns() // 1_000_000
    with redis.Redis.from_url(data.url) as client:
        client.flushall()
        pipe = client.pipeline(transaction=False)
        for number in range(1, 200):
            pipe.xadd("orders", {f"name{at}": f"value {number}" for at in range(30)}, id=f"{number}-0")
        for number in range(60):
            pipe.xadd(f"s{number}", {"n": 1}, id=f"{now - 1000}-0")
            for group in range(5):
                pipe.xgroup_create(f"s{number}", f"g{group}", id="0")
        for number in range(40):
            pipe.xadd(f"idle{number}", {"n": 1}, id="1-0")
        pipe.execute()
        client.xgroup_create("orders", "billing", id="0")
        for number in range(40):
            client.xreadgroup("billing", f"c{number}", {"orders": ">"}, count=2)
        for number in range(1, 401):
            letter = DeadLetter((b"n", b"1"), "orders", f"{number}-0", "billing", "c1", 5, "error",
                                f"E{number % 30}: no", "File x\n" * 40, 1, now - number)  # fmt: skip
            pipe.execute_command("XADD", "orders:dead", f"{number}-0", *pack(letter))
        for number in range(60):
            record = {"stream": "s1", "cron": "0 0 * * *"}
            pipe.hset(KEY, f"nightly{number}", json.dumps(record))
        pipe.execute()
        limit = {"running": None, "by_key": False, "in_use": 0, "granted": 1, "refused": 2, "waiting": 3, "rate": "9/s"}
        for number in range(60):
            job = {"id": f"{number + 1}-0", "since_ms": 1, "deliveries": 1}
            limits = [{"name": f"limit {number}", **limit}]
            enrol(client, f"w{number}", handler=f"h{number % 45}", stream="s1", group="g", recent=RECENT, jobs=[job],
                  limits=limits)  # fmt: skip
            pipe.zadd(protocol.INDEX, {f"gone{number}": now - 60_000})
            pipe.hset(protocol.CONTROL, protocol.pause_field(f"s{number}", "g0"),
                      json.dumps({"reason": "why", "by": "ann", "at_ms": 1}))  # fmt: skip
            end = protocol.sign_off(f"ended{number}-1-abcdef", now, "drain", [("h1", "s1", "g")])[3][3]
            pipe.zadd(protocol.ENDED, {end: now})
        pipe.execute()
        divide(client, data.url, now)
        report_queries(client)
    with ConsoleThread(data.url, allow_changes=True) as console:
        yield console


@pytest.fixture(scope="module")
def tab(browser: "Browser") -> "Iterator[Page]":
    """One tab for all tests."""
    page = browser.new_page()
    yield page
    page.close()


@pytest.mark.parametrize("name", PATHS)
def test_no_page_is_tall_or_cut(tab: "Page", crowded: ConsoleThread, name: str) -> None:
    """At 1440 pixels a page has at most 2,000 in height. At 390 no chart and no link of the navigation is cut."""
    tab.set_viewport_size({"width": 1440, "height": 900})
    tab.goto(crowded.address + PATHS[name])
    assert tab.evaluate("document.documentElement.scrollHeight") <= TALLEST
    tab.set_viewport_size({"width": 390, "height": 844})
    cut = tab.evaluate(
        """() => [...document.querySelectorAll(".bar nav a, main svg")].filter(one => {
            const box = one.getBoundingClientRect();
            return box.width && (box.right > innerWidth + 1 || box.left < 0);
        }).map(one => one.outerHTML.slice(0, 80))"""
    )
    assert (cut, tab.evaluate("document.documentElement.scrollWidth")) == ([], 390)


@pytest.mark.parametrize("name", PATHS)
def test_no_field_looks_filled_in(tab: "Page", crowded: ConsoleThread, name: str) -> None:
    """Fields have examples beside them, not in them. Each list of suggestions that a field names exists."""
    tab.goto(crowded.address + PATHS[name])
    assert tab.locator("main [placeholder]").count() == 0
    lists = tab.evaluate(
        "[...document.querySelectorAll('main input[list]')].filter(one => one.list === null).map(one => one.name)"
    )
    assert lists == []


def test_idle_streams_are_folded(tab: "Page", crowded: ConsoleThread) -> None:
    """Streams in which nothing happens are folded on the overview. The JSON lists them like the others."""
    tab.set_viewport_size({"width": 1440, "height": 900})
    tab.goto(crowded.address + "/")
    assert not tab.locator("a:text-is('idle1')").is_visible()
    tab.click("summary:has-text(' idle streams')")
    tab.locator("a:text-is('idle1')").wait_for(state="visible")
    assert tab.locator("tbody tr:has-text('2 more groups')").count() >= 1
    listed = crowded.ask("/overview.json").facts["streams"]
    assert (len(listed), len(listed[0]["groups"]) > 0) == (100, True)


def test_rows_stay_still_under_the_pointer(tab: "Page", crowded: ConsoleThread, data) -> None:
    """While the pointer is over a row, new entries do not move it. They appear when the pointer leaves."""
    with redis.Redis.from_url(data.url) as client:
        client.xadd("still", {"n": "first"})
        tab.set_viewport_size({"width": 1440, "height": 900})
        tab.goto(crowded.address + "/stream?key=still")
        tab.wait_for_selector("#state[data-state='live']")
        tab.hover("#entries tbody tr")
        client.xadd("still", {"n": "second"})
        tab.wait_for_selector("#state:has-text('held still')")
        assert "second" not in tab.locator("#entries").inner_text()
        tab.mouse.move(5, 5)
        tab.wait_for_selector("#entries >> text=second")


def test_a_correction_is_kept_while_letters_come_in(tab: "Page", crowded: ConsoleThread, data) -> None:
    """A text that somebody writes stays, with its preview beside it, while newer letters arrive."""
    tab.goto(crowded.address + "/dead?key=orders:dead&group=billing")
    tab.wait_for_selector("#state[data-state='live']")
    tab.fill("textarea", '{"n": "2"}')
    tab.wait_for_selector(".inline .difference")
    with redis.Redis.from_url(data.url) as client:
        letter = DeadLetter((b"n", b"9"), "orders", "9-0", "billing", "c1", 5, "error", "Newer: no", "", 1, 2)
        client.execute_command("XADD", "orders:dead", "500-0", *pack(letter))
    tab.wait_for_selector("#state:has-text('held still')")
    assert tab.locator("textarea").input_value() == '{"n": "2"}'
    assert tab.locator(".inline button.act").inner_text() == "Put the corrected entry back"
    tab.fill("textarea", "{")
    tab.wait_for_selector(".inline :text('is invalid')")


def test_dangerous_changes_are_apart_and_red(tab: "Page", crowded: ConsoleThread) -> None:
    """Changes that lose something stand apart from the others, in another colour."""
    tab.goto(crowded.address + "/stream?key=orders")
    names = tab.locator(".deeds.danger summary").all_inner_texts()
    assert "Delete the stream" in names
    colours = tab.evaluate(
        """() => ["#main .deeds:not(.danger) summary", "#main .deeds.danger summary"]
            .map(path => getComputedStyle(document.querySelector(path)).color)"""
    )
    assert colours[0] != colours[1]
    assert not [name for name in tab.locator("summary").all_inner_texts() if name.startswith("stream ")]


@pytest.mark.parametrize("name", PATHS)
def test_a_finger_hits_what_it_aims_at(tab: "Page", crowded: ConsoleThread, name: str) -> None:
    """At 390 pixels, links in lists are at least 24 high, buttons 32, and checkboxes 24 in each direction."""
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto(crowded.address + PATHS[name])
    small = tab.evaluate(
        """() => [["td a, th a, .hits a, .sorts a, .pages a, main input[type=checkbox]", 24], ["main button", 32]]
            .flatMap(([path, least]) => [...document.querySelectorAll(path)].filter(one => {
                const box = one.getBoundingClientRect();
                return one.checkVisibility() && box.width && (box.height < least || box.width < 24);
            })).map(one => one.outerHTML.slice(0, 100))"""
    )
    assert small == []


def test_a_tap_shows_the_values_of_a_chart(browser: "Browser", crowded: ConsoleThread) -> None:
    """A tap on a chart shows the time and the values there, which stay; a tap elsewhere hides them."""
    phone = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    try:
        page = phone.new_page()
        page.goto(crowded.address + "/")
        tip = page.locator(".tip")

        def shown() -> bool:  # a scroll to the chart hides the values, and may end after the tap
            page.locator("svg.plot").first.tap()
            return tip.is_visible()

        eventually(shown, what="a tap shows values")
        assert "UTC" in tip.inner_text()
        page.locator("h1").tap()
        tip.wait_for(state="hidden")
    finally:
        phone.close()


def test_ten_rows_need_no_scrolling(tab: "Page", crowded: ConsoleThread) -> None:
    """At 1440 by 900, a table of ten letters is whole in its card, and a longer one has a shadow below its last row."""
    tab.set_viewport_size({"width": 1440, "height": 900})
    tab.goto(crowded.address + PATHS["dead"] + "&group=billing")
    heights = "one => [one.scrollHeight, one.clientHeight]"
    whole, visible = tab.locator(".wide[aria-label=Letters]").evaluate(heights)
    assert whole <= visible + 1
    tab.goto(crowded.address + "/workers")
    box = tab.locator(".wide[aria-label=Workers]")
    whole, visible = box.evaluate(heights)
    assert (whole > visible, "gradient" in box.evaluate("one => getComputedStyle(one).backgroundImage")) == (True, True)
