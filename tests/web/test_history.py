"""The charts of the history in a real browser: ranges, values, marks and dragging, in both widths and themes."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import redis

from millstream.ops.history.model import TEN
from millstream.server.thread import ServerThread
from support.console import ConsoleThread
from support.histories import fill, put
from support.needs import lacking, package
from support.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "<img src=x onerror=document.title='run'>"
PAGES = {
    "overview": "/",
    "stream": "/stream?key=orders",
    "group": "/group?key=orders&group=billing",
    "server": "/server",
}
AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


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


@pytest.fixture(scope="module")
def now(data: ServerThread) -> int:
    """Fill a server with thirty days of figures, a deploy and a change; return the time in milliseconds."""
    with redis.Redis.from_url(data.url) as client:
        client.flushall()
        now = int(client.time()[0]) * 1000
        fill(client, now)
        for ago, version in ((120, "1"), (110, HOSTILE)):
            put(client, TEN, now + 1000 - ago, {("total",): (0,) * 10, ("version", version): (1,)})
        for number in range(30):
            client.xadd("orders", {"n": number})
        client.xgroup_create("orders", "billing", id="0")
        client.xreadgroup("billing", "web-1", {"orders": ">"}, count=12)
        change = {"action": "group rewind", "stream": "orders", "group": "billing", "who": HOSTILE}
        client.xadd("millstream:audit", change, id=f"{now - 600_000}-0")
    return now


@pytest.fixture(scope="module")
def charts(data: ServerThread, now: int) -> Iterator[ConsoleThread]:
    """A read-only console over that server."""
    assert now
    with ConsoleThread(data.url) as found:
        yield found


def opened(page: "Page", console: ConsoleThread, path: str) -> list[str]:
    """Open a page, and return a growing list of its errors."""
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(console.address + path)
    page.wait_for_selector("svg.plot polyline")
    return wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_charts_fit_and_are_accessible(browser: "Browser", charts: ConsoleThread, width: int, scheme: Any) -> None:
    """Each page with charts fits the screen, meets axe's rules, breaks no policy, and cuts no text of a chart."""
    axe = package("axe_core_python.sync_playwright").Axe()
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = context.new_page()
    for path in PAGES.values():
        wrong = opened(page, charts, path)
        found = axe.run(page, options={"runOnly": AA})
        assert [(rule["id"], [node["target"] for node in rule["nodes"]][:3]) for rule in found["violations"]] == []
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        cut = page.evaluate(
            """() => [...document.querySelectorAll("svg.plot text")].filter((text) => {
                const box = text.getBBox(), paper = text.ownerSVGElement.viewBox.baseVal;
                return box.x < -1 || box.x + box.width > paper.width + 1 || box.y + box.height > paper.height + 2;
            }).map((text) => text.textContent)"""
        )
        assert (path, wide, cut, wrong) == (path, 0, [], [])
    context.close()


def test_a_pointer_and_keys_show_values(browser: "Browser", charts: ConsoleThread) -> None:
    """A box has the time and the values at the pointer, and at the arrow keys; texts of others stay texts."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    wrong = opened(page, charts, PAGES["group"])
    plot = page.locator("svg.plot").nth(3)
    plot.hover()
    tip = page.locator(".tip")
    time, out, into = tip.inner_text().split("\n\n")[:3]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", time)
    assert (bool(re.fullmatch(r"out [\d.]+/s", out)), bool(re.fullmatch(r"in [\d.]+/s", into))) == (True, True)
    before = tip.inner_text()
    plot.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert tip.inner_text() != before
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.keyboard.press("ArrowLeft")  # to the newest step, whose marks have hostile texts
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    assert page.locator(".tip img").count() == 0
    page.click("text=marks:")
    assert HOSTILE in page.locator(".hits").first.inner_text()
    assert "Move the group's position" in page.locator(".hits").first.inner_text()
    assert page.locator(".hits a", has_text="billing on orders").count() == 1
    assert (page.title() != "run", wrong) == (True, [])
    context.close()


def test_a_range_is_chosen_by_links_and_by_dragging(browser: "Browser", charts: ConsoleThread) -> None:
    """Links choose a range that ends now; a drag chooses a part, which the address keeps and links widen again."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    wrong = opened(page, charts, PAGES["group"] + "&count=3")
    for name in ("15m", "24h", "7d", "30d", "1h"):
        page.click(f"nav[aria-label='Time range'] >> text={name}")
        page.wait_for_url(f"**range={name}**")
        assert page.locator("nav[aria-label='Time range'] [aria-current]").inner_text() == name
        assert page.locator("svg.plot polyline").count() >= 5
    assert "count=3" in page.url
    box = page.locator("svg.plot").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50, steps=4)
    assert page.locator(".chosen").is_visible()
    page.mouse.up()
    page.wait_for_url(re.compile(r"range=\d+-\d+"))
    start, end = map(int, re.search(r"range=(\d+)-(\d+)", page.url).groups())  # type: ignore[union-attr] # it waited for it
    assert 8 * 60_000 < end - start < 20 * 60_000
    page.wait_for_selector("svg.plot polyline")
    page.click("[aria-label=Longer]")
    page.wait_for_url(lambda url: f"range={start}-{end}" not in url)
    later = list(map(int, re.search(r"range=(\d+)-(\d+)", page.url).groups()))  # type: ignore[union-attr] # it has one
    assert later[1] - later[0] > 1.5 * (end - start)
    assert wrong == []
    context.close()


def test_a_chart_is_refreshed_without_losing_the_focus(
    browser: "Browser", charts: ConsoleThread, data: ServerThread
) -> None:
    """A new entry changes the live chart; the chart keeps its focus."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    opened(page, charts, "/?range=15m")
    plot = page.locator("svg.plot").first
    plot.focus()
    with redis.Redis.from_url(data.url) as client:
        client.xadd(TEN, {"v": 1, "text": '["total"] 987654 0 0 0 0 0 0 0 0 0'})
    page.wait_for_selector("figcaption:has-text('987,654')")
    assert plot.evaluate("node => node === document.activeElement")
    context.close()


def test_charts_are_there_without_scripts(browser: "Browser", charts: ConsoleThread) -> None:
    """Without scripts the charts, the ranges and the marks are there, and a label has the newest and highest value."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(charts.address + PAGES["group"])
    label = page.locator("svg.plot").first.get_attribute("aria-label") or ""
    # The readings were written before the first test; on a slow machine the newest is too old to count as present
    assert re.match(r"Lag: ([\d,]+|none now); the highest is [\d,]+, at \d{4}-", label)
    page.click("nav[aria-label='Time range'] >> text=7d")
    page.wait_for_url("**range=7d")
    assert page.locator("svg.plot polyline").count() >= 5
    context.close()


def test_damage_is_reported_and_any_range_is_a_page(charts: ConsoleThread, data: ServerThread) -> None:
    """Damaged entries are counted on the page; a hostile range shows the usual one; a key of another type is named."""
    with redis.Redis.from_url(data.url) as client:
        client.xadd(TEN, {"v": "1", "zlib": "broken"})
        eventually(lambda: charts.ask("/overview.json?range=15m").facts["history"]["skipped"] == 1)
        assert "Damaged entries, which are left out: 1." in charts.ask("/?range=15m").text
        for text in ("%3Cscript%3E", "9" * 40, "5-5", "0-99999999999999", "-", "1h1h"):
            found = charts.ask(f"/?range={text}")
            assert (found.status, "<img" in found.text) == (200, False)
        kept = client.dump(TEN)
        client.delete(TEN)
        client.set(TEN, "text")
        charts.forget()
        assert "The history cannot be read" in eventually(
            lambda: (page := charts.ask("/?range=1h").text) * ("cannot be read" in page)
        )
        client.delete(TEN)
        client.restore(TEN, 0, kept)


def test_a_console_without_a_writer_shows_its_own_figures(data: ServerThread) -> None:
    """While nobody writes a history, the charts have the readings of open pages, and say so."""
    with redis.Redis.from_url(data.url) as client:
        client.rename(TEN, "aside")
        try:
            with ConsoleThread(data.url) as console:
                console.ask("/")
                text = console.ask("/?range=15m").text
                facts = console.ask("/group.json?key=orders&group=billing&range=15m").facts["history"]
        finally:
            client.rename("aside", TEN)
    assert "No process writes a history to this server" in text
    lag = next(one for one in facts["figures"] if one["chart"] == "Lag")
    assert [point[1] for point in lag["points"]] == [18]
    assert json.dumps(facts)


def test_a_clock_that_was_set_back_hides_no_figures(data: ServerThread) -> None:
    """While the newest entries have times in the future, the charts have the console's own figures, and say why."""
    with redis.Redis.from_url(data.url) as client:
        ahead = (int(client.time()[0]) + 7200) * 1000
        client.rename(TEN, "aside")
        try:
            put(client, TEN, ahead, {("total",): (7,) * 10})
            with ConsoleThread(data.url) as console:
                console.ask("/")
                page = console.ask("/?range=15m").text
                facts = console.ask("/group.json?key=orders&group=billing&range=15m").facts["history"]
        finally:
            client.rename("aside", TEN)
    assert "clock was set back" in page
    assert "There are no figures" not in page
    lag = next(one for one in facts["figures"] if one["chart"] == "Lag")
    assert [point[1] for point in lag["points"]] == [18]


def test_a_console_with_history_writes(data: ServerThread) -> None:
    """With the option, a console writes at once, and gives the lease back at its end."""
    with redis.Redis.from_url(data.url) as client:
        before = client.xrevrange(TEN, count=1)
        with ConsoleThread(data.url, history=True):
            eventually(lambda: client.xrevrange(TEN, count=1) != before)
        assert not client.exists("millstream:{history}:writer")
