"""The nine on-call tasks in a real browser, against a server with real workers.

Each step is one action: a click, a typed text, a ticked box. ``docs/console.md`` lists them.
"""

import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.console import ConsoleThread
from support.needs import lacking, package
from support.oncall import HOUR, OnCall, on_call
from support.servers import millstream_server, redis_server
from support.source import ROOT
from support.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.realserver

PAGE = (ROOT / "docs/console.md").read_text()
STEPS = {
    name.strip(): int(steps) for name, steps in re.findall(r"^\| ([^|]+) \| (\d+): [^|]*\| \d+: ", PAGE, re.MULTILINE)
}
"""Tasks with their numbers of steps, as in the document."""


class Person:
    """A user of the browser with counted steps.

    Args:
        page: page of the browser.
        console: the console.
    """

    def __init__(self, page: "Page", console: ConsoleThread) -> None:
        self.page = page
        self.task = ""
        self.steps: list[str] = []
        page.goto(console.address)

    def does(self, task: str) -> None:
        """Begin a task, by its name in the document."""
        self.task = task

    def click(self, what: str, *, inside: str = "body") -> None:
        """Click a link or button by its text."""
        self.steps.append(f"click {what!r}")
        names = self.page.locator(inside).locator("a, button, summary")
        names.filter(has_text=re.compile(rf"^\s*{re.escape(what)}\s*$")).first.click()

    def write(self, text: str, *, into: str, enter: bool = False) -> None:
        """Type a text into a field, if requested with the Enter key."""
        self.steps.append(f"write {text[:20]!r}")
        self.page.locator(into).fill(text)
        if enter:
            self.page.locator(into).press("Enter")

    def reads(self, words: str) -> None:
        """Wait for a text, which is not a step."""
        self.page.wait_for_selector(f"text={words}")


SCREENS = {
    "redis": (1440, "dark"),
    "millstream": (390, "light"),
    "redis on a phone": (390, "dark"),
    "wide": (1440, "light"),
}
"""Width and theme of the page; a name that begins with ``redis`` stands for that server."""


@pytest.fixture(scope="module", params=SCREENS)
def screen(request: pytest.FixtureRequest) -> str:
    """A server and a screen."""
    return str(request.param)


@pytest.fixture(scope="module")
def crew(screen: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCall]:
    """A busy server with every fault, once for each screen."""
    folder = tmp_path_factory.mktemp("crew")
    made = redis_server(folder) if screen.startswith("redis") else millstream_server(folder, "--memory")
    with made as server, on_call(server, folder) as found:
        yield found


@pytest.fixture(scope="module")
def console(crew: OnCall) -> Iterator[ConsoleThread]:
    """A console that may make changes."""
    with ConsoleThread(crew.server.url, allow_changes=True) as found:
        yield found


@pytest.fixture(scope="module")
def tab(screen: str) -> "Iterator[Page]":
    """A tab of the system's Chromium in headless mode."""
    api = package("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        lacking("no chromium on PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        width, theme = SCREENS[screen]
        yield browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        browser.close()


@pytest.fixture
def person(tab: "Page", console: ConsoleThread) -> Iterator[Person]:
    """A user on call at the overview, with as many steps as the document gives."""
    found = Person(tab, console)
    yield found
    print(f"{found.task}: {len(found.steps)} steps: {'; '.join(found.steps)}")  # noqa: T201 - for whoever compares
    assert STEPS[found.task] == len(found.steps), found.steps


def test_the_stuck_consumer_is_found(crew: OnCall, person: Person) -> None:
    """The overview names the stuck worker with its source line, and the group's page its entries."""
    person.does("Find the stuck consumer, and why")
    person.reads(f"the worker {crew.worker('stuck')} is blocked at crew.py:")
    person.click("render")
    person.reads("its event loop does not run")
    row = person.page.locator("tr", has=person.page.locator("a.name", has_text="stuck"))
    assert row.locator("td").first.inner_text() == "1"


def test_what_is_stuck_is_reclaimed(crew: OnCall, person: Person) -> None:
    """Stuck entries are claimed from their row for the proposed consumer, and the result's undo works."""
    person.does("Reclaim what it holds")
    person.click("render")
    person.click("Claim")
    person.reads("Claim 1 entry pending")
    person.click("Claim 1 entry")
    person.reads("millstream audit undo")
    held = {row["name"]: row["pending"] for row in crew.client.xinfo_consumers("jobs", "render")}
    assert (held["stuck"], held["well"]) == (0, 1)


def test_why_entries_die_is_found(person: Person) -> None:
    """Dead letters are grouped by error, with the last one's traceback."""
    person.does("Find why entries die")
    person.click("Dead letters")
    person.reads("ZeroDivisionError")
    person.click("Traceback of the last", inside="tr:has-text('ZeroDivisionError')")
    person.reads("100 // int(amount)")


def test_one_is_corrected_and_replayed(crew: OnCall, person: Person) -> None:
    """The newest dead letter is corrected with a preview of the differences beside it, and the worker handles it."""
    person.does("Correct one and replay it")
    person.click("Dead letters")
    person.write('{"amount": "5"}', into="textarea")
    person.reads("Differences")
    person.click("Put the corrected entry back")
    person.reads("Done")
    eventually(lambda: "20" in [fields["amount"] for _, fields in crew.client.xrange("paid")])
    assert crew.client.xlen("orders:dead") == 1


def test_one_entry_is_set_aside(crew: OnCall, person: Person) -> None:
    """The oldest pending entry of a group leads to its page, which previews the dead letter beside its button."""
    crew.client.xadd("poison", {"n": 1})
    crew.client.xgroup_create("poison", "takers", id="0")
    crew.client.xreadgroup("takers", "c1", {"poison": ">"})
    person.page.reload()
    person.page.wait_for_selector("tr:has-text('takers') td[data-label='Oldest pending'] a")
    person.does("Make one entry a dead letter")
    age = person.page.locator("tr:has-text('takers') td[data-label='Oldest pending'] a").inner_text()
    person.click(age, inside="tr:has-text('takers') td[data-label='Oldest pending']")
    person.reads("Make it a dead letter of takers")
    person.click("Make dead letters of 1 entry")
    person.reads("Done")
    assert (crew.client.xlen("poison:dead"), crew.client.xpending("poison", "takers")["pending"]) == (1, 0)


def test_a_group_is_rewound_by_an_hour(crew: OnCall, person: Person) -> None:
    """A rewind by an hour previews the number of redelivered entries, and the lag stays known."""
    person.does("Rewind a group by an hour, safely")
    person.write("mail", into="input[name='q']", enter=True)
    person.click("1 hour back")
    person.reads("2 entries are delivered again")
    person.click("Deliver 2 entries again")
    person.reads("Done")
    (group,) = crew.client.xinfo_groups("events")
    (oldest, _), *_ = crew.client.xrange("events")
    assert (group["lag"], group["last-delivered-id"]) == (2, oldest)
    assert int(oldest.partition("-")[0]) % HOUR >= 0


def test_an_unknown_lag_is_explained_and_known_again(crew: OnCall, person: Person) -> None:
    """The overview gives the reason of an unknown lag, and the preview its count and the change that repairs it."""
    person.does("Explain an unknown lag")
    person.reads("the lag is unknown: the group's position was set")
    person.click("Preview the remedy", inside="li:has-text('sessions on clicks')")
    lag = person.page.locator("tr", has=person.page.locator("th:text-is('lag')"))
    assert lag.locator("td").all_inner_texts() == ["2", "2"]
    person.click("Repair the lag")
    person.reads("Done")
    assert crew.client.xinfo_groups("clicks")[0]["lag"] == 2


def test_the_slow_command_is_found(crew: OnCall, person: Person) -> None:
    """The server's page shows the slow command. Without SLOWLOG it shows the total cost of each command."""
    person.does("Find the slow command")
    person.click("Server")
    person.reads("Cost of commands")
    person.reads("XRANGE orders - + COUNT 7" if crew.has_slow_log else "This server does not report it")


def test_a_worker_is_drained_before_a_deploy(crew: OnCall, person: Person) -> None:
    """Draining a worker previews its entries and streams without another reader.

    Its row disappears when it has ended.
    """
    person.does("Drain a worker before a deploy")
    worker = crew.worker("well")
    person.click("Workers")
    person.click("Drain", inside=f"tr:has-text('{worker}')")
    person.reads("No other worker reads 'billing' of 'orders'")
    person.click("Drain the worker")
    person.reads("Done")
    eventually(lambda: crew.worker("well") == "", what="the worker has ended")
    person.page.goto(person.page.url.partition("/change")[0] + "/workers")
    person.page.wait_for_selector(f"tr:has-text('{worker}')", state="detached")
