"""The pages in a real browser: no foreign requests, no foreign script, usable by keyboard and screen reader.

One browser, one console and one server for the file.
"""

import json
import shutil
from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import redis

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.ops.history.windows import StepValue, TimeRange
from millstream.spark.archiving import manifest as manifests
from millstream.spark.archiving.directory import MANIFEST
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile
from millstream.spark.model.offsets import Id
from millstream.spark.monitoring import store
from millstream.web.charts import Standing, ground
from millstream.web.plots import PlotLine, Unit, plot
from support.console import ConsoleThread
from support.enrolled import RECENT, enrol
from support.needs import lacking, package

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
HOSTILE = "<img src=x onerror=document.title='run'><script>document.title='run'</script>"
QUERY = {
    **store.NEW,
    "id": "lake",
    "driver": "d",
    "state": "failed",
    "name": HOSTILE,
    "error": HOSTILE,
    "phases": {HOSTILE: 5},
    "places": [{"stream": "orders", "id": "9-0", "n": 9, "latest_n": 20}],
    "recent": [[second * 1000, 1, second, 3, 4, 5] for second in range(9)],
}
PATHS = {
    "overview": "/",
    "stream": "/stream?key=orders",
    "group": "/group?key=orders&group=billing",
    "unknown lag": "/group?key=clicks&group=sessions",
    "entry": "/entry?key=orders&id=2-0",
    "hostile": f"/stream?key={quote(HOSTILE, safe='')}",
    "dead": "/dead",
    "letters": "/dead?key=orders:dead",
    "letter": "/letter?key=orders:dead&id=9999999999999-0",
    "strange letter": "/letter?key=orders:dead&id=1-0",
    "letters filtered": "/dead?key=orders:dead&group=billing&text=img&since=1d-ago&until=2h-ago",
    "entry aside": "/entry?key=orders&id=1-0&aside=billing",
    "workers": "/workers",
    "handlers": "/handlers",
    "alerts": "/alerts",
    "changes": "/changes",
    "handler": f"/handlers?key=orders&group=billing&handler={quote(HOSTILE, safe='')}",
    "runs": "/run?key=orders&id=3-0",
    "server": "/server",
    "queries": "/spark",
    "query": "/query?id=lake",
    "archive": "/archive",
    "change": "/change?do=group+rm&key=orders&group=shipping",
    "correcting": "/change?do=dead+edit&key=orders:dead&ids=9999999999999-0",
    "letters put back": "/change?do=dead+retry&key=orders:dead&ids=9999999999999-0",
    "filtered": "/stream?key=orders&where=amount%3E50&count=3",
    "search": "/search?q=o",
    "nothing": "/stream?key=nope",
}


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
def filled(data, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleThread]:
    """A console that may make changes, over streams with contents that try to run as script."""
    with redis.Redis.from_url(data.url) as client:
        client.flushall()
        for number in range(1, 60):
            client.xadd("orders", {"amount": number, "note": HOSTILE}, id=f"{number}-0")
        for group in ("billing", "shipping"):
            client.xgroup_create("orders", group, id="0")
        client.xreadgroup("billing", "web-1", {"orders": ">"}, count=20)
        client.execute_command("XNACK", "orders", "billing", "FAIL", "IDS", 1, "3-0")
        client.xadd("clicks", {"n": 1}, id="1-0")
        client.xadd("clicks", {"n": 2}, id="2-0")
        client.xadd("clicks", {"n": 3}, id="3-0")
        client.xgroup_create("clicks", "sessions", id="1-0")
        client.xdel("clicks", "2-0")
        client.xadd(HOSTILE, {HOSTILE: HOSTILE})
        client.xgroup_create(HOSTILE, HOSTILE, id="0")
        client.xadd("orders:dead", {"n": HOSTILE}, id="1-0")
        died = DeadLetter((b"n", HOSTILE.encode()), "orders", "1-0", "billing", "web-1", 5, "error", HOSTILE, "T", 1, 2)
        client.execute_command("XADD", "orders:dead", "9999999999999-0", *pack(died))
        client.hset(store.QUERIES, "lake", json.dumps(QUERY))
        enrol(client, HOSTILE, handler=HOSTILE, recent=RECENT)
    places = {"orders": ArchivePosition(Id(20, 0), 20), HOSTILE: ArchivePosition(Id(1, 0), 1)}
    file = DataFile("stream=orders/date=1970-01-01/hour=00/a1-0-b.parquet", "orders", Id(1, 0), Id(20, 0), 20, 999)
    folder = tmp_path_factory.mktemp("archive")
    (folder / MANIFEST).write_text(manifests.dump(ArchiveManifest(2, places, (file,))))
    with ConsoleThread(data.url, allow_changes=True, archive=folder) as console:
        yield console


def opened(context: "BrowserContext", console: ConsoleThread, path: str) -> "tuple[Page, list[str]]":
    """An open, live page, with its errors and requests to other hosts."""
    page = context.new_page()
    wrong = heard(page, console)
    page.goto(console.address + path)
    return page, wrong


def heard(page: "Page", console: ConsoleThread) -> list[str]:
    """A growing list of a page's errors and requests to other hosts."""
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(console.address) else wrong.append(asked.url))
    return wrong


@pytest.fixture(scope="module")
def tab(browser: "Browser", filled: ConsoleThread) -> "Iterator[tuple[Page, list[str]]]":
    """One tab for all pages of a test, with its errors and foreign requests. A tab for each test would be slow."""
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    yield page, heard(page, filled)
    context.close()


@pytest.mark.parametrize("name", PATHS)
def test_a_page_is_accessible_and_runs_nothing_of_others(
    tab: "tuple[Page, list[str]]", filled: ConsoleThread, name: str
) -> None:
    """Each page meets axe's rules for WCAG 2.2 AA in both themes, and fits a telephone's screen.

    Its log has no error, it violates no policy, and it sends no request to another host.
    """
    axe = package("axe_core_python.sync_playwright").Axe()
    page, wrong = tab
    page.goto("about:blank")  # the earlier page is closed and logs nothing more
    wrong.clear()
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(filled.address + PATHS[name])
    page.wait_for_selector("#state[data-state='live'], main:not([data-live])")
    assert violations(axe.run(page, options={"runOnly": AA})) == []
    page.emulate_media(color_scheme="dark")
    assert violations(axe.run(page, options={"runOnly": {"type": "rule", "values": ["color-contrast"]}})) == []
    for width in (390, 1024, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert (width, wide) == (width, 0)
    assert [said for said in wrong if "404" not in said] == []
    assert page.title() != "run"


@pytest.mark.parametrize("letter", ["a", "W", "0", "\N{CJK UNIFIED IDEOGRAPH-6F22}", "@"])
def test_no_word_of_a_drawing_is_cut(tab: "tuple[Page, list[str]]", letter: str) -> None:
    """Names, axis values and times lie within a diagram's area for letters of any width."""
    page, _ = tab
    hour, day = 3_600_000, 86_400_000
    units: tuple[tuple[int, Unit], ...] = ((40_123, "ms"), (4 * 10**11, "ms"), (950, "ms"), (5_432_100, "count"))
    drawn = [
        ground([Standing(letter * 40, 5 * hour, None, "well")], at, at + span, 3) for at, span in ((0, 5), (hour, day))
    ]
    drawn += [
        plot(
            "x",
            unit,
            [PlotLine("x", [StepValue(first + at, value, value, value) for at in (0, span)])],
            (),
            TimeRange("", first, first + span, 1, fine=True),
        )
        for first, span in ((day - 7, 60_000), (10**17, day))
        for value, unit in units
    ]
    style = resources.files("millstream.web.static").joinpath("console.css").read_text(encoding="utf-8")
    page.goto("about:blank")  # whose policy allows a style
    page.set_content(f"<style>{style}</style>" + "".join(drawn))
    cut = page.evaluate(
        """() => [...document.querySelectorAll("svg text")].filter(text => {
            const box = text.getBBox(), paper = text.ownerSVGElement.viewBox.baseVal;
            return box.x < 0 || box.x + box.width > paper.width || box.y + box.height > paper.height + 2;
        }).map(text => text.textContent)"""
    )
    assert cut == []
    said = page.locator("svg.plot text").all_text_contents()
    assert ("40 s" in said, "2M" in said, any(mark.endswith("k ms") for mark in said)) == (True, True, False)


def violations(found: Any) -> list[tuple[str, object]]:
    """Return the violated rules with their places; some rules must have been checked."""
    assert found["passes"]
    return [(rule["id"], [node["target"] for node in rule["nodes"]][:3]) for rule in found["violations"]]


def test_a_page_is_kept_live_paused_and_gone_on(browser: "Browser", filled: ConsoleThread, data) -> None:
    """A live page shows added entries by itself, but not while paused. Opened parts stay open."""
    context = browser.new_context()
    page, wrong = opened(context, filled, "/stream?key=live")
    with redis.Redis.from_url(data.url) as client:
        client.xadd("live", {"n": "first"})
        page.goto(filled.address + "/stream?key=live")
        page.wait_for_selector("#state[data-state='live']")
        page.click("details[data-key='raw'] summary")
        client.xadd("live", {"n": "second"})
        page.wait_for_selector("text=second")
        assert page.locator("details[data-key='raw']").get_attribute("open") is not None
        page.keyboard.press("p")
        page.wait_for_selector("#state[data-state='paused']")
        client.xadd("live", {"n": "third"})
        page.keyboard.press("p")
        page.wait_for_selector("text=third")
    assert [said for said in wrong if "404" not in said] == []
    context.close()


def test_keys_lead_everywhere(browser: "Browser", filled: ConsoleThread) -> None:
    """Keys open the key list, the next row, a level up, another page, and the search."""
    context = browser.new_context()
    page, _ = opened(context, filled, "/")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    for _ in range(2):
        page.keyboard.press("j")
    page.keyboard.press("k")
    lead = page.locator("tr.at").get_attribute("data-href")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: url.endswith(str(lead)))
    page.keyboard.press("u")
    page.wait_for_url("**/stream?key=*")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url("**/server")
    page.keyboard.press("/")
    page.keyboard.type("billing")
    page.keyboard.press("Enter")
    page.wait_for_url("**/group?key=orders&group=billing")  # no other name fits
    page.keyboard.press("/")
    page.keyboard.type("i")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=i")
    assert "billing" in page.locator(".hits a").all_inner_texts()
    context.close()


def test_pages_are_whole_without_scripts(browser: "Browser", filled: ConsoleThread) -> None:
    """Without scripts a page can be read, followed, filtered and paged. Buttons that need scripts are hidden."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(filled.address + "/")
    assert page.locator("button:visible").count() == 0
    page.click("table a:text-is('billing')")  # findings of one kind are folded, and may be of this group
    page.wait_for_url("**/group?*")
    page.click("summary:text-is('Filter')")
    page.fill(".filter input[name=consumer]", "web-1")
    page.click(".filter:has(input[name=consumer]) button")
    page.wait_for_url("**consumer=web-1**")  # which waits until the new page is loaded
    assert page.locator("#pending tbody tr").count() == 15
    page.goto(filled.address + "/stream?key=orders&count=10")
    older = page.locator("a", has_text="Older").get_attribute("href")
    page.click("text=Older")
    page.wait_for_url(lambda url: url.endswith(str(older)))
    assert page.locator("#entries tbody th").first.inner_text() == "49-0"
    page.goto(filled.address + f"/stream?key={quote(HOSTILE, safe='')}")
    page.click("summary:text-is('Filter')")
    page.fill("input[name=from]", "1h ago")
    page.click("button:text-is('Filter')")
    page.wait_for_url("**from=1h**")
    assert page.locator("h1").inner_text() == HOSTILE
    context.close()


def test_what_somebody_types_stays_while_the_page_is_refreshed(browser: "Browser", filled: ConsoleThread, data) -> None:
    """Text typed into a form stays while the live page is refreshed and another card appears above it."""
    with redis.Redis.from_url(data.url) as client:
        client.xgroup_create("orders", "typed", id="0")
        client.xreadgroup("typed", "web-1", {"orders": ">"}, count=1)
        context = browser.new_context()
        page, _ = opened(context, filled, "/group?key=orders&group=typed")
        field = page.locator("tr form:has(input[value='pending claim']) [name=to]")
        field.fill("web-2")
        client.xadd("millstream:audit", {"action": "group rewind", "stream": "orders", "group": "typed"})
        page.wait_for_selector("text=1 mark:")
    assert field.input_value() == "web-2"
    context.close()


def test_a_stuck_consumers_entries_are_moved(browser: "Browser", filled: ConsoleThread, data) -> None:
    """A stuck consumer's entries are moved from its group's page with a preview, one button, and an undo."""
    with redis.Redis.from_url(data.url) as client:
        client.xgroup_create("orders", "stuck", id="0")
        client.xreadgroup("stuck", "gone", {"orders": ">"}, count=3)
        context = browser.new_context()
        page, wrong = opened(context, filled, "/group?key=orders&group=stuck")
        page.locator("summary", has_text="Claim entries for a consumer").click()
        form = page.locator(".deed form:has(input[value='pending claim'])")
        form.locator("[name=consumer]").fill("gone")
        form.locator("[name=to]").fill("web-9")
        form.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name="Claim 3 entries").click()
        page.wait_for_selector("h1:has-text('Done')")
        held = {row["name"]: row["pending"] for row in client.xinfo_consumers("orders", "stuck")}
        assert (held, wrong) == ({b"gone": 0, b"web-9": 3}, [])
        assert "millstream audit undo" in page.locator(".command").first.inner_text()
        context.close()


def test_a_reader_is_told_when_the_console_is_gone(browser: "Browser", data) -> None:
    """A page reports when the console is gone, with the age of its data."""
    context = browser.new_context()
    with ConsoleThread(data.url) as console:
        page, _ = opened(context, console, "/")
        page.wait_for_selector("#state[data-state='live']")
    page.wait_for_selector("#notice:not([hidden])")
    assert "does not answer" in page.locator("#notice").inner_text()
    context.close()
