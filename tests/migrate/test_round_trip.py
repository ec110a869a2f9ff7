"""Streams with random histories are unchanged after a transfer between every two kinds of servers."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from migrate.history import KEY, histories, live, portrait, without_xnack
from millstream.client.connect import sync_client
from millstream.migrate import run
from millstream.migrate.capabilities import VERSIONS
from millstream.migrate.command_file import load
from millstream.migrate.connection import Link
from support import campaign
from support.servers import ServerProcess, millstream_server

RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module")
def our_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield one Millstream server for all of these tests."""
    with millstream_server(tmp_path_factory.mktemp("ours"), "--memory") as server:
        yield server


def moved(source: str, target: str, **choices: Any) -> run.MigrationReport:
    """Copy everything, and require that every stream is copied."""
    with Link(source) as one, Link(target) as other:
        report = run.move(one, other, run.MigrationOptions(existing="replace", **choices), lambda *_: None)
    assert [(each.state, each.reason, each.differences) for each in report.streams] == [("copied", "", [])]
    return report


def expect(shown: dict[str, Any], other: dict[str, Any]) -> None:
    """Assert that two portraits are equal, and name the first difference."""
    for name, value in shown.items():
        assert other[name] == value, name


def lowered(shown: dict[str, Any]) -> dict[str, Any]:
    """Return a portrait whose groups have not read more entries than were added, as in Millstream and Redis 8.2."""
    for group in shown["groups"]:
        if group["read"] is not None:
            group["read"] = min(group["read"], shown["added"])
    return shown


def from_redis(server: ServerProcess, ours: str, history: list[Any]) -> None:
    """Check transfers from Redis to Millstream by both ways, and back by commands."""
    with server.client() as theirs, sync_client(ours) as mine:
        if not live(theirs, history):
            return
        before = portrait(theirs, KEY, all_times=False, memory=False)
        moved(server.url, ours, way="commands")
        expect(lowered(portrait(theirs, KEY, all_times=False, memory=False)), portrait(mine, KEY, all_times=False))
        moved(server.url, ours, way="dump")
        seen = [each["consumers"] for each in portrait(theirs, KEY, all_times=True)["groups"]]
        found = portrait(mine, KEY, all_times=True)
        assert [[who[:2] for who in group["consumers"]] for group in found["groups"]] == [
            [who[:2] for who in each] for each in seen
        ]
        expect(before, portrait(mine, KEY, all_times=False))
        moved(ours, server.url)
        expect(before, portrait(theirs, KEY, all_times=False, memory=False))


def from_ours(ours: str, server: ServerProcess, history: list[Any]) -> None:
    """Check transfers from Millstream to Millstream, and to Redis with the features that it has."""
    with ExitStack() as stack:
        mine = stack.enter_context(sync_client(ours))
        theirs = stack.enter_context(server.client())
        other = stack.enter_context(sync_client("memory://second"))
        if not live(mine, history):
            return
        moved(ours, "memory://second", way="dump")
        expect(portrait(mine, KEY, all_times=True), portrait(other, KEY, all_times=True))
        moved(ours, "memory://second", way="commands")
        plain = portrait(mine, KEY, all_times=False)
        made = portrait(other, KEY, all_times=False)
        assert made["memory"][:2] == plain["memory"][:2]
        plain["memory"] = made["memory"]
        expect(lowered(plain), made)
        moved(ours, server.url)
        wanted = without_xnack(portrait(mine, KEY, all_times=False, memory=False))
        expect(wanted, without_xnack(portrait(theirs, KEY, all_times=False, memory=False)))


def by_file(ours: str, history: list[Any], folder: Path) -> None:
    """Check transfers from Millstream to a file of either form and back."""
    with sync_client(ours) as mine:
        if live(mine, history):
            shown = lowered(portrait(mine, KEY, all_times=False, memory=False))
            through(ours, shown, folder / "life.resp.gz", "resp")
            through(ours, shown, folder / "life.txt", "text")


def through(ours: str, shown: dict[str, Any], path: Path, form: Any) -> None:
    """Copy to one file and back."""
    with Link(ours) as link:
        report = run.to_file(link, path, form, VERSIONS["8.8"], run.MigrationOptions(), lambda *_: None)
    assert [(each.state, each.reason, each.differences) for each in report.streams] == [("copied", "", [])]
    with sync_client("memory://third") as held, Link("memory://third") as link:
        held.flushall()
        load(path, link)
        expect(shown, lowered(portrait(held, KEY, all_times=False, memory=False)))


@given(histories)
@settings(max_examples=25, **RELAXED)
def test_from_redis_and_back(redis_process: ServerProcess, our_process: ServerProcess, history: list[Any]) -> None:
    """A stream imported from Redis is the same by both ways, and unchanged after an export to Redis."""
    redis_process.client().flushall()
    from_redis(redis_process, our_process.url, history)


@given(histories, st.booleans())
@settings(max_examples=25, **RELAXED)
def test_from_ours(
    redis_process: ServerProcess, our_process: ServerProcess, history: list[Any], is_remote: bool
) -> None:
    """A stream copied from Millstream to Millstream loses nothing, and to Redis only the reported features."""
    redis_process.client().flushall()
    from_ours(our_process.url if is_remote else "memory://first", redis_process, history)


@given(histories)
@settings(max_examples=20, **RELAXED)
def test_through_a_file(history: list[Any]) -> None:
    """A stream is unchanged after an export to a file of either form and an import."""
    with tempfile.TemporaryDirectory() as folder:
        by_file("memory://first", history, Path(folder))


@given(histories)
@settings(max_examples=8, **RELAXED)
def test_into_a_data_directory(redis_process: ServerProcess, history: list[Any]) -> None:
    """Streams imported into a data directory are there when it is opened again."""
    with redis_process.client() as theirs, tempfile.TemporaryDirectory() as folder:
        theirs.flushall()
        if not live(theirs, history):
            return
        moved(redis_process.url, f"file://{folder}/data?fsync=no", way="commands")
        with sync_client(f"file://{folder}/data") as mine:
            shown = lowered(portrait(theirs, KEY, all_times=False, memory=False))
            expect(shown, portrait(mine, KEY, all_times=False))


@contextmanager
def clean(server: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of an emptied server."""
    with server.client() as client:
        client.flushall()
        yield client


def twenty_lives(theirs: ServerProcess, ours: ServerProcess, number: int) -> int:
    """Check twenty random histories by all three ways, determined by a number, and return the number of streams."""
    count = 0

    @seed(number)
    @given(histories)
    @settings(max_examples=20, database=None, **RELAXED)
    def lives(history: list[Any]) -> None:
        nonlocal count
        count += 1
        with clean(theirs):
            from_redis(theirs, ours.url, history)
        with clean(theirs), tempfile.TemporaryDirectory() as folder:
            from_ours("memory://first", theirs, history)
            by_file("memory://first", history, Path(folder))

    lives()
    return count


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_many_lives(redis_process: ServerProcess, our_process: ServerProcess) -> None:
    """Streams with 2,000 random histories are unchanged after transfers from Redis, from Millstream and by file."""
    campaign.run(
        "carried", lambda number: twenty_lives(redis_process, our_process, number), range(1, 101), unit="streams"
    )
