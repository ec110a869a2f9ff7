"""The pages of an eventful server in a browser: height, width, targets of a claim, alerts, and folded forms."""

import json
import shutil
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import redis

from millstream.server.thread import ServerThread
from millstream.worker.registry import protocol
from support.console import ConsoleThread
from support.enrolled import enrol
from support.eventful import LONG, fill_eventful
from support.needs import lacking, package

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATHS = {
    "overview": "/",
    "server": "/server",
    "group with findings": "/group?key=orders&group=billing",
    "partitioned group": "/group?key=parcels&group=routing",
    "partitioned stream": "/stream?key=parcels",
    "stream": "/stream?key=orders",
    "long name": f"/stream?key={LONG}",
    "group of a long name": f"/group?key={LONG}&group={LONG}",
    "alerts": "/alerts",
    "workers": "/workers",
    "handlers": "/handlers",
    "schedules": "/schedules",
    "dead letters": "/dead?key=orders:dead",
    "letter": "/letter?key=orders:dead&id=1-0",
}
TALLEST = 2000
WIDTHS = (1440, 1280, 1200, 1100, 1080, 1024, 900, 768, 720, 600, 390, 320)
AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
FORGED = "w" * 500
"""The id of a record that no worker wrote."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleThread]:
    """A console that may make changes, over a server with cold entries, rules of retention and slow commands."""
    parameters = {"tier": "yes", "slowlog-log-slower-than": "0", "stream-retention": "orders 7d 2gb logs* 1d 0"}
    with ServerThread(tmp_path_factory.mktemp("data"), fsync="no", parameters=parameters) as server:
        with redis.Redis.from_url(server.url) as client:
            fill_eventful(server.url, client)
            client.zadd(protocol.INDEX, {FORGED: time.time_ns() // 1_000_000})
            client.set(protocol.worker_key(FORGED), "no record")
        with ConsoleThread(server.url, allow_changes=True) as found:
            found.ask("/schedules")  # so that the bar has their link
            yield found


@pytest.fixture(scope="module")
def tab(console: ConsoleThread) -> "Iterator[Page]":
    """A tab of the system's Chromium in headless mode."""
    assert console  # it is filled in a loop of its own, which the browser's would hinder
    api = package("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        lacking("no chromium on PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser.new_page()
        browser.close()


def show(tab: "Page", console: ConsoleThread, path: str, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto(console.address + path)


@pytest.mark.parametrize("name", PATHS)
def test_an_eventful_page_is_not_tall(tab: "Page", console: ConsoleThread, name: str) -> None:
    """At 1440 pixels a page with causes, alerts, partitions and charts of handlers has at most 2,000 in height."""
    show(tab, console, PATHS[name], 1440)
    assert tab.evaluate("document.documentElement.scrollHeight") <= TALLEST


@pytest.mark.parametrize("name", PATHS)
def test_no_page_is_wider_than_the_window(tab: "Page", console: ConsoleThread, name: str) -> None:
    """At each width the page fits the window, the bar's links and buttons lie in it, and the search shows its hint."""
    tab.goto(console.address + PATHS[name])
    found = []
    for width in WIDTHS:
        tab.set_viewport_size({"width": width, "height": 900})
        found.append(
            tab.evaluate(
                """() => {
                const field = document.querySelector(".find input"), style = getComputedStyle(field);
                const pen = document.createElement("canvas").getContext("2d");
                pen.font = style.font;
                const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
                const off = [...document.querySelectorAll(".bar a, .bar button, .find")].filter(one => {
                    const box = one.getBoundingClientRect();
                    return box.width && (box.right > innerWidth + 1 || box.left < -1);
                }).map(one => one.textContent.trim());
                const reads = pen.measureText(field.placeholder).width <= room;
                return [document.documentElement.scrollWidth, off, reads];
            }"""
            )
        )
    assert found == [[width, [], True] for width in WIDTHS]
    assert tab.locator(".bar nav a", has_text="Schedules").count() == 1


def test_a_claim_proposes_a_healthy_worker_by_its_whole_name(
    data: ServerThread, changing: ConsoleThread, client: redis.Redis, tab: "Page"
) -> None:
    """A blocked or draining worker is not proposed for a claim, though it asked last. The name can be read."""
    names = ("frozen-1-4711-aaaaaa", "drained-1-4711-bbbbbb", "healthy-" + "x" * 60, "gone-1-4711-cccccc", "holder")
    client.xgroup_create("orders", "billing", id="0", mkstream=True)
    for number in range(9):
        client.xadd("orders", {"n": number})
    for name in (names[4], names[3], names[2], names[1], names[0]):  # the blocked one asked last
        client.xreadgroup("billing", name, {"orders": ">"}, count=1)
    enrol(client, names[2], consumer=names[2])
    enrol(client, names[0], consumer=names[0])
    enrol(client, names[1], consumer=names[1])
    blocked = {"blocked": {"since_ms": 1, "where": "a.py:7"}}
    for name, change in ((names[0], blocked), (names[1], {"state": "draining"})):
        record = json.loads(client.get(protocol.worker_key(name)) or b"")
        client.set(protocol.worker_key(name), json.dumps(record | change))
    changing.forget()
    for width in (1440, 390):
        show(tab, changing, "/group?key=orders&group=billing", width)
        tab.click("summary:has-text('more consumers')")
        row = tab.locator("tr", has=tab.locator("a:text-is('holder')"))
        field = row.locator("[name=to]")
        assert field.input_value() == names[2]
        assert names[2] in row.inner_text() or field.evaluate("one => one.scrollWidth <= one.clientWidth")
    others = [each.get_attribute("value") for each in tab.locator("tr [name=to]").all()]
    assert not {names[0], names[1]} & set(others)


@pytest.mark.parametrize("path", ["/", "/alerts"])
def test_cells_of_alerts_stand_in_their_columns(tab: "Page", console: ConsoleThread, path: str) -> None:
    """The lines of all cells of an alert begin at the same height, and a long name widens no column."""
    show(tab, console, path, 1440)
    for fold in tab.locator("[data-key='card alerts'] > summary").all():
        fold.click()
    cells = tab.evaluate(
        """() => [...document.querySelectorAll("[data-key='card alerts'] tbody td")].map(one => [
            getComputedStyle(one).display, one.dataset.label, one.getBoundingClientRect().width])"""
    )
    assert {display for display, _, _ in cells} == {"table-cell"}
    assert all(width >= 360 for _, label, width in cells if label == "Problem")
    card = tab.locator("[data-key='card alerts'] .wide")
    assert card.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_times_and_figures_are_in_the_pages_words(tab: "Page", console: ConsoleThread) -> None:
    """The note about the beginning of a history has a time like the others; no figure has its range in large type."""
    text = console.ask("/?range=30d").text
    assert "The history begins at 20" in text
    begins = text.partition("The history begins at ")[2][:40]
    assert (begins[10], begins[19:24]) == (" ", " UTC."), begins
    source = console.ask("/group?key=orders&group=billing").text
    assert not [part for part in source.split("<dd>")[1:] if "(over the last" in part.partition("</dd>")[0]]


@pytest.mark.parametrize("name", ["workers", "schedules", "dead letters", "letter", "stream"])
@pytest.mark.parametrize("width", [1440, 390])
def test_dangerous_buttons_stand_apart(tab: "Page", console: ConsoleThread, name: str, width: int) -> None:
    """A button that loses something is red, and at 390 pixels its neighbours are at least 16 pixels away."""
    show(tab, console, PATHS[name], width)
    near = tab.evaluate(
        """least => [...document.querySelectorAll("main button.loses, main .all button[value='worker stop']")]
            .filter(one => one.checkVisibility()).flatMap(one => {
                const a = one.getBoundingClientRect();
                const others = [...one.closest("tr, .head, .filter").querySelectorAll("button:not(.loses)")];
                return others.map(each => each.getBoundingClientRect()).filter(b => b.width &&
                    Math.max(b.left - a.right, a.left - b.right, b.top - a.bottom, a.top - b.bottom) < least)
                    .map(b => one.outerHTML.slice(0, 80));
            })""",
        16 if width == 390 else 6,
    )
    assert near == []
    stop = tab.locator(".all button[value='worker stop']")
    assert [each.get_attribute("class") for each in stop.all()] == ["loses"] * (name == "workers")


def test_a_forged_name_does_not_widen_the_page(tab: "Page", console: ConsoleThread) -> None:
    """The long id of a record that no worker wrote is broken on the page of workers."""
    show(tab, console, "/workers", 390)
    assert FORGED[:20] in tab.locator("main").inner_text().replace("\n", "")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/stream?key=orders", "[name=fields]"),
        ("/stream?key=orders", ".filter [name=where]"),
        ("/group?key=orders&group=billing", ".filter [name=consumer]"),
        ("/dead?key=orders:dead", ".filter [name=group]"),
        ("/handlers", ".filter [name=key]"),
    ],
)
def test_forms_are_closed_until_their_button_opens_them(
    tab: "Page", console: ConsoleThread, path: str, field: str
) -> None:
    """A form for publishing, filtering or a timeline is behind a button. An active filter is open."""
    show(tab, console, path, 1440)
    found = tab.locator(field).first
    assert not found.is_visible()
    tab.locator(f"details:has({field}) > summary").first.click()
    found.wait_for(state="visible")
    if "where" in field:
        show(tab, console, f"{path}&where=amount%3E5", 1440)
        assert tab.locator(field).is_visible()


@pytest.mark.parametrize("name", PATHS)
def test_a_dark_telephone_is_accessible(tab: "Page", console: ConsoleThread, name: str) -> None:
    """At 390 pixels in the dark theme each page meets axe's rules for WCAG 2.2 AA."""
    axe = package("axe_core_python.sync_playwright").Axe()
    tab.emulate_media(color_scheme="dark")
    show(tab, console, PATHS[name], 390)
    try:
        found = axe.run(tab, options={"runOnly": AA})
    finally:
        tab.emulate_media(color_scheme="light")
    assert [(rule["id"], [node["target"] for node in rule["nodes"]][:3]) for rule in found["violations"]] == []
