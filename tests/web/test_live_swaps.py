"""A refreshed page leaves alone what the reader does: an open list, a click that has begun, the focus, a typed text."""

import json
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.console import ConsoleThread
from support.needs import lacking, package
from support.waiting import DEADLINE, eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

PROBLEM = "<section aria-label='Problems'><ul><li>A problem</li></ul></section>"
ROW = "<tr data-key='row'><td><input name='to' value='web-1'></td></tr>"
FOLD = "<details data-key='more'><summary>More</summary><p>Some</p></details>"
CARD = f"<section data-key='card'><h2>Card</h2>{FOLD}<table><tbody>{ROW}</tbody></table></section>"
BEFORE = {
    "the same": "",
    "with a problem": PROBLEM,
    "with an own section": "<section><h2>Another</h2></section>",
    "with another card": "<section data-key='first'><h2>First</h2></section>",
}


@pytest.fixture(scope="module")
def tab(console: ConsoleThread) -> "Iterator[Page]":
    """A paused page in the system's Chromium, in which a test takes the server's place."""
    api = package("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        lacking("no chromium on PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        context = browser.new_context()  # a test opens another page in it
        context.set_default_timeout(DEADLINE * 1000)
        page = context.new_page()
        page.goto(console.address + "/")
        page.click("#pause")
        yield page
        browser.close()


def swap(tab: "Page", html: str) -> None:
    """Put a page in place, as an event of the server does."""
    tab.evaluate("html => renew(document.getElementById('main'), html)", html)


def show(tab: "Page", html: str) -> None:
    """Show a page whose reader has done nothing yet."""
    swap(tab, "")
    tab.evaluate("() => unfolded.clear()")
    swap(tab, html)
    tab.mouse.move(0, 0)


@pytest.mark.parametrize("after", BEFORE)
@pytest.mark.parametrize("before", BEFORE)
def test_what_stays_keeps_its_focus_and_state(tab: "Page", before: str, after: str) -> None:
    """A part that comes or goes above a card takes neither the focus nor a typed text nor an open list from it."""
    show(tab, f"<h1>Page</h1>\n{BEFORE[before]}\n{CARD}")
    tab.evaluate("() => { document.querySelector('#main details').open = true; }")
    tab.fill("[name=to]", "web-2")
    swap(tab, f"<h1>Page</h1>\n{BEFORE[after]}\n{CARD}")
    assert tab.evaluate("() => document.activeElement.name") == "to"
    assert tab.input_value("[name=to]") == "web-2"
    assert tab.evaluate("() => document.querySelector('#main details').open")


def test_a_row_takes_its_typed_text_to_another_table(tab: "Page") -> None:
    """A row that goes to another table, or into a new list, keeps what was typed in it."""
    show(tab, f"<table data-key='one'><tbody>{ROW}</tbody></table>")
    tab.fill("[name=to]", "web-2")
    for other in ("<table data-key='two'><tbody>{}</tbody></table>", "<details data-key='d' open>{}</details>"):
        swap(tab, other.format(f"<table><tbody>{ROW}</tbody></table>" if "details" in other else ROW))
        assert tab.input_value("[name=to]") == "web-2"


def test_a_list_that_was_away_is_open_again(tab: "Page") -> None:
    """A list that the reader has opened or closed is so again after a reading that lacked it."""
    show(tab, CARD)
    tab.click("#main summary")
    tab.wait_for_function("() => unfolded.size")
    swap(tab, "<section data-key='card'><p>It takes too long.</p></section>")
    swap(tab, CARD)
    assert tab.evaluate("() => document.querySelector('#main details').open")
    tab.click("#main summary")
    tab.wait_for_function("() => ![...unfolded.values()].some(Boolean)")
    for card in (CARD, CARD.replace("<details", "<details open")):
        swap(tab, "")
        swap(tab, card)
        assert not tab.evaluate("() => document.querySelector('#main details').open")


def test_elements_of_one_key_all_stay(tab: "Page") -> None:
    """Two elements with one key, of which a client chose both names, are both shown."""
    rows = "<ul><li data-key='a'>first</li><li data-key='a'>second</li></ul>"
    for _ in range(2):
        swap(tab, rows)
        assert tab.locator("#main li").all_inner_texts() == ["first", "second"]


def test_a_click_that_has_begun_is_heard_although_the_page_changes(tab: "Page", console: ConsoleThread) -> None:
    """A press opens a list although the part above it goes away before the button is released."""
    page, asked = tab.context.new_page(), list["Route"]()

    def answer(route: "Route") -> None:
        if "event-stream" in route.request.headers["accept"]:
            asked.append(route)
        else:
            route.continue_()

    def tell(words: str) -> None:
        eventually(lambda: (page.wait_for_timeout(10), asked)[1], what="the page asks for events")
        facts = {"at": 1, "every": 1, "trouble": "", "title": words, "html": f"<h1>Page</h1>\n{words}\n{CARD}"}
        body = f"retry: 100\n\nevent: page\ndata: {json.dumps(facts)}\n\n"
        asked.pop().fulfill(content_type="text/event-stream", body=body)
        eventually(lambda: (page.wait_for_timeout(10), asked)[1], what="it has read them")

    page.route("**", answer)
    page.goto(console.address + "/alerts")
    tell(PROBLEM)
    summary = page.locator("#main summary", has_text="More")
    box = summary.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    tell("")
    page.mouse.up()
    assert page.evaluate("() => document.querySelector('#main details').open")
    page.wait_for_selector("section[aria-label=Problems]", state="detached")
    assert page.evaluate("() => document.querySelector('#main details').open")
    page.close()
