"""Streams with random lives come out of a transfer as they went in, between every two kinds of servers."""

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
    """One server of ours for all of these."""
    with millstream_server(tmp_path_factory.mktemp("ours"), "--memory") as server:
        yield server


def moved(source: str, target: str, **choices: Any) -> run.MigrationReport:
    """Copy everything; every stream arrives."""
    with Link(source) as one, Link(target) as other:
        report = run.move(one, other, run.MigrationOptions(existing="replace", **choices), lambda *_: None)
    assert [(each.state, each.reason, each.differences) for each in report.streams] == [("copied", "", [])]
    return report


def expect(shown: dict[str, Any], other: dict[str, Any]) -> None:
    """Alike, or the first thing that is not."""
    for name, value in shown.items():
        assert other[name] == value, name


def lowered(shown: dict[str, Any]) -> dict[str, Any]:
    """Ours, like Redis from 8.2 on, has no group that read more than was added."""
    for group in shown["groups"]:
        if group["read"] is not None:
            group["read"] = min(group["read"], shown["added"])
    return shown


def from_redis(server: ServerProcess, ours: str, history: list[Any]) -> None:
    """Redis to ours by both ways, and back by commands."""
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
    """Ours to ours with all there is, by commands with all they carry, and to Redis with what that can hold."""
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
    """Ours to a file of either form and back."""
    with sync_client(ours) as mine:
        if live(mine, history):
            shown = lowered(portrait(mine, KEY, all_times=False, memory=False))
            through(ours, shown, folder / "life.resp.gz", "resp")
            through(ours, shown, folder / "life.txt", "text")


def through(ours: str, shown: dict[str, Any], path: Path, form: Any) -> None:
    """To one file and back."""
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
    """Moving in from a real Redis by both ways gives equal results, and moving out again gives what there was."""
    redis_process.client().flushall()
    from_redis(redis_process, our_process.url, history)


@given(histories, st.booleans())
@settings(max_examples=25, **RELAXED)
def test_from_ours(
    redis_process: ServerProcess, our_process: ServerProcess, history: list[Any], is_remote: bool
) -> None:
    """Ours, over a socket or in the process, loses nothing to its like, and to Redis only what it says."""
    redis_process.client().flushall()
    from_ours(our_process.url if is_remote else "memory://first", redis_process, history)


@given(histories)
@settings(max_examples=20, **RELAXED)
def test_through_a_file(history: list[Any]) -> None:
    """A file of commands in either form makes the stream anew."""
    with tempfile.TemporaryDirectory() as folder:
        by_file("memory://first", history, Path(folder))


@given(histories)
@settings(max_examples=8, **RELAXED)
def test_into_a_data_directory(redis_process: ServerProcess, history: list[Any]) -> None:
    """Data moved into a directory is there when it is opened again."""
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
    """A client of a server with nothing in it."""
    with server.client() as client:
        client.flushall()
        yield client


def twenty_lives(theirs: ServerProcess, ours: ServerProcess, number: int) -> int:
    """A piece of the campaign: each life by all three ways, the same lives for the same number; how many they were."""
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
    """The large figure of the three above."""
    campaign.run(
        "carried", lambda number: twenty_lives(redis_process, our_process, number), range(1, 101), unit="streams"
    )
