"""Trimming a stream removes only the previewed entries, and the preview names the groups that still need them."""

import json
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.client.line import Line
from millstream.ops import making
from millstream.ops.audit import Actor
from millstream.ops.streams.measuring import trim_facts
from support.changes import planned
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver


def run(server: ServerProcess, *words: str) -> Result:
    """Run ``millstream stream trim`` in this process."""
    return CliRunner().invoke(main, ["stream", "trim", *words, "--url", server.url])


@pytest.fixture
def orders(client: redis.Redis) -> None:
    """A stream of ten entries: ``slow`` was delivered three with two pending, and ``fast`` acknowledged all."""
    for number in range(1, 11):
        client.execute_command("XADD", "orders", f"{number}-0", "n", number)
    for group, count in (("slow", 3), ("fast", 10)):
        client.xgroup_create("orders", group, id="0")
        client.xreadgroup(group, "c", {"orders": ">"}, count=count)
    client.xack("orders", "slow", "1-0")
    client.xack("orders", "fast", *(f"{number}-0" for number in range(1, 11)))


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("words", "gone", "pending", "undelivered"),
    [
        (("--maxlen", "9"), 1, 0, 0),
        (("--maxlen", "4"), 6, 2, 3),
        (("--maxlen", "0"), 10, 2, 7),
        (("--maxlen", "10"), 0, 0, 0),
        (("--maxlen", "99"), 0, 0, 0),
        (("--minid", "3"), 2, 1, 0),
        (("--minid", "5-1"), 5, 2, 2),
        (("--minid", "0-0"), 0, 0, 0),
        (("--before", "1970-01-01T00:00:00.008Z"), 7, 2, 4),
    ],
)
def test_what_goes_is_what_was_shown(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...], gone: int, pending: int, undelivered: int
) -> None:
    """``stream trim`` by number, id or time removes exactly the previewed entries. A dry run removes none."""
    dry = run(server, "orders", *words, "--dry-run", "-o", "json")
    assert dry.exit_code == 0, dry.output
    facts = json.loads(dry.stdout)
    assert (facts["entries"], facts["pending"], facts["undelivered"]) == (gone, pending, undelivered)
    assert client.xlen("orders") == 10
    client.execute_command("XADD", "orders", "20-0", "n", "new")  # an entry added meanwhile stays
    done = run(server, *facts["line"].split()[3:], "--yes")
    assert done.exit_code == 0, done.output
    assert client.xlen("orders") == 11 - gone


@pytest.mark.usefixtures("orders")
def test_people_are_told_who_still_needs_them(server: ServerProcess, client: redis.Redis) -> None:
    """``stream trim`` names the groups that need the entries, and removes none without a confirmation or --yes."""
    refused = run(server, "orders", "--maxlen", "4")
    assert (refused.exit_code, client.xlen("orders")) == (2, 10)
    assert "'slow' has 2 entries of them pending" in refused.stderr
    assert "'slow' was not delivered 3 entries of them" in refused.stderr
    assert "some of which 'slow' still needs" in refused.stderr
    assert "XTRIM orders MINID = 7-0" in refused.stderr
    calm = run(server, "orders", "--minid", "2-0", "--dry-run")
    assert "Every group has received" in calm.stdout


@pytest.mark.usefixtures("orders")
def test_a_group_made_meanwhile_has_it_refused(look: Any, client: redis.Redis) -> None:
    """A trim is refused if a group was created since the preview. A completed one is in the audit stream."""
    who = Actor("alice@laptop", "here")
    prepared = look(lambda line: planned(line, "stream trim", "orders", maxlen="4"))
    client.xgroup_create("orders", "late", id="0")
    outcome = look(lambda line: making.carry_out(line, prepared, who, "c1"))
    assert (outcome.done, client.xlen("orders")) == (0, 10)
    prepared = look(lambda line: planned(line, "stream trim", "orders", maxlen="4"))
    assert look(lambda line: making.carry_out(line, prepared, who, "c2")).done == 1
    assert client.xlen("orders") == 4
    ((_, fields),) = client.xrange("millstream:audit")
    assert (fields[b"action"], fields[b"who"]) == (b"stream trim", b"alice@laptop")


@pytest.mark.usefixtures("orders")
def test_an_unknown_lag_is_counted(look: Any, client: redis.Redis) -> None:
    """A trim counts an unknown lag, up to a limit that is shown as a lower bound."""
    client.xdel("orders", "9-0")

    async def facts(line: Line) -> Any:
        return await trim_facts(line, "orders", minid="6-0", most=3)

    found = look(facts)
    assert (found.entries, found.more) == (3, True)
    whole = look(lambda line: trim_facts(line, "orders", minid="6-0"))
    slow = next(group for group in whole.groups if group.group == "slow")
    assert (slow.pending, slow.undelivered) == (2, 2)


@pytest.mark.usefixtures("orders")
def test_approximately_leaves_what_shares_a_node(server: ServerProcess, client: redis.Redis) -> None:
    """An approximate trim keeps entries that share a stream node with kept ones. The preview says ``at most``."""
    dry = run(server, "orders", "--maxlen", "4", "--approx", "--dry-run")
    assert "XTRIM orders MINID '~' 7-0" in dry.stdout or "XTRIM orders MINID ~ 7-0" in dry.stdout
    assert run(server, "orders", "--maxlen", "4", "--approx", "--yes").exit_code == 0
    assert client.xlen("orders") == 10


@pytest.mark.parametrize(
    "words", [(), ("--maxlen", "1", "--minid", "1"), ("--minid", "x"), ("--minid", f"{2**64}"), ("--before", "soon")]
)
def test_a_bound_that_is_none(server: ServerProcess, words: tuple[str, ...]) -> None:
    """An invalid trim bound is a usage error."""
    done = run(server, "orders", *words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
