"""The eight on-call tasks in the shell alone, against a server with real workers.

Each step is a command line; ``docs/console.md`` lists them.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from millstream.cli.main import main
from support.oncall import OnCall, on_call
from support.servers import millstream_server, redis_server
from support.source import ROOT
from support.waiting import eventually

pytestmark = pytest.mark.realserver

PAGE = (ROOT / "docs/console.md").read_text()
STEPS = {
    name.strip(): int(steps) for name, steps in re.findall(r"^\| ([^|]+) \| \d+: [^|]*\| (\d+): ", PAGE, re.MULTILINE)
}
"""Tasks with their numbers of command lines, as in the document."""


class Person:
    """A user of the shell with counted command lines.

    Args:
        crew: the server and its workers.
    """

    def __init__(self, crew: OnCall) -> None:
        self.crew = crew
        self.task = ""
        self.steps: list[str] = []

    def does(self, task: str) -> None:
        """Begin a task, by its name in the document."""
        self.task = task

    def types(self, *words: str, given: str | None = None) -> str:
        """Run a command line and return its output."""
        self.steps.append(" ".join(words))
        done = CliRunner().invoke(main, list(words), env={"MILLSTREAM_URL": self.crew.server.url}, input=given)
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture(scope="module", params=["redis", "millstream"])
def crew(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCall]:
    """A server with every fault, once for each kind."""
    folder = tmp_path_factory.mktemp("crew")
    made = redis_server(folder) if request.param == "redis" else millstream_server(folder, "--memory")
    with made as server, on_call(server, folder) as found:
        yield found


@pytest.fixture
def person(crew: OnCall) -> Iterator[Person]:
    """A user on call with as many command lines as the document gives."""
    found = Person(crew)
    yield found
    print(f"{found.task}: {len(found.steps)} command lines: {'; '.join(found.steps)}")  # noqa: T201 - to be compared
    assert STEPS[found.task] == len(found.steps), found.steps


def test_the_stuck_consumer_is_found(crew: OnCall, person: Person) -> None:
    """The shell shows the stuck worker, its source line and its one entry. The others were handed back."""
    person.does("Find the stuck consumer, and why")
    shown = person.types("group", "show", "jobs", "render")
    assert re.search(rf"the worker {re.escape(crew.worker('stuck'))} is blocked at\s+crew.py:", shown)
    assert re.search(r"^stuck +1 ", shown, re.MULTILINE)


def test_what_is_stuck_is_reclaimed(crew: OnCall, person: Person) -> None:
    """Stuck entries are claimed for another consumer, with the undo printed."""
    person.does("Reclaim what it holds")
    words = ("pending", "claim", "jobs", "render", "--consumer", "stuck", "--to", "well", "--yes")
    assert "millstream audit undo" in person.types(*words)
    held = {row["name"]: row["pending"] for row in crew.client.xinfo_consumers("jobs", "render")}
    assert (held["stuck"], held["well"]) == (0, 1)


def test_why_entries_die_is_found(person: Person) -> None:
    """``dead ls`` shows errors, and one letter shows traceback and payload."""
    person.does("Find why entries die")
    rows = json.loads(person.types("dead", "ls", "orders", "-o", "json"))
    (letter,) = [row["id"] for row in rows if "ZeroDivisionError" in row["error"]]
    assert "100 // int(amount)" in person.types("dead", "show", "orders", letter)


def test_one_is_corrected_and_replayed(crew: OnCall, person: Person) -> None:
    """A dead letter is corrected by a program as the editor, put back, and handled."""
    person.does("Correct one and replay it")
    rows = json.loads(person.types("dead", "ls", "orders", "-o", "json"))
    (letter,) = [row["id"] for row in rows if "ValueError" in row["error"]]
    person.types("dead", "edit", "orders", letter, "--from", "-", "--yes", given='{"amount": "5"}')
    eventually(lambda: "20" in [fields["amount"] for _, fields in crew.client.xrange("paid")])


def test_one_entry_is_set_aside(crew: OnCall, person: Person) -> None:
    """``pending dead`` makes a dead letter of one pending entry."""
    crew.client.xadd("poison", {"n": 1}, id="1-0")
    crew.client.xgroup_create("poison", "takers", id="0")
    crew.client.xreadgroup("takers", "c1", {"poison": ">"})
    person.does("Make one entry a dead letter")
    person.types("pending", "dead", "poison", "takers", "1-0", "--reason", "poison", "--yes")
    assert (crew.client.xlen("poison:dead"), crew.client.xpending("poison", "takers")["pending"]) == (1, 0)


def test_a_group_is_rewound_by_an_hour(crew: OnCall, person: Person) -> None:
    """A group is rewound by an hour after a preview, with a known lag."""
    person.does("Rewind a group by an hour, safely")
    words = ("group", "rewind", "events", "mail", "--to", "1h-ago")
    assert "2 entries are delivered again" in person.types(*words, "--dry-run")
    person.types(*words, "--yes")
    assert crew.client.xinfo_groups("events")[0]["lag"] == 2


def test_an_unknown_lag_is_explained_and_known_again(crew: OnCall, person: Person) -> None:
    """The shell gives the reason of an unknown lag, its count and its repair."""
    person.does("Explain an unknown lag")
    assert "the lag is unknown: " in person.types("group", "show", "clicks", "sessions")
    person.types("group", "rewind", "clicks", "sessions", "--to", "+0", "--yes")
    found: Any = crew.client.xinfo_groups("clicks")
    assert found[0]["lag"] == 2


def test_the_slow_command_is_found(crew: OnCall, person: Person) -> None:
    """The slow command is shown, or the fact that the server keeps no list and an alternative."""
    person.does("Find the slow command")
    shown = person.types("server", "slow")
    assert ("XRANGE orders - + COUNT 7" if crew.has_slow_log else "see `server show`") in shown


def test_a_worker_is_drained_before_a_deploy(crew: OnCall, person: Person) -> None:
    """``worker drain`` ends when the worker has ended."""
    person.does("Drain a worker before a deploy")
    rows = json.loads(person.types("worker", "ls", "-o", "json"))["workers"]
    worker = crew.worker("well")
    assert worker in [row["id"] for row in rows]
    assert "Ended: 1." in person.types("worker", "drain", worker, "--wait")
    assert crew.worker("well") == ""
