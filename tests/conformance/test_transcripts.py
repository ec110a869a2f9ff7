"""The 90,000 recorded commands, byte for byte except for times: in process, and through the server's socket."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.pipe import Pipe
from conformance.transcripts import Run, as_json, load, masked
from millstream.node.log import rebuilding
from millstream.node.log.snapshot import payloads
from millstream.replies import Error, Simple
from support.inprocess import World
from support.resp import Pairs
from support.servers import millstream_server
from support.state import check, snapshot

Ask = Callable[[list[list[bytes]]], list[object]]

RUNS, COMMANDS = 300, 90_000


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """Return all recorded runs."""
    found = list(load())
    assert len(found) == RUNS
    assert sum(len(run.steps) for run in found) == COMMANDS
    return found


def differences(runs: list[Run], ask: Ask) -> list[str]:
    """Return the replies that differ from the recorded ones, the first of each run."""
    found: list[str] = []
    for run in runs:
        for command, reply in zip(run.setup, ask(run.setup), strict=True):
            assert not isinstance(reply, Error), (command, reply)
        replies = ask([command for command, _ in run.steps])
        for number, ((command, wanted), reply) in enumerate(zip(run.steps, replies, strict=True)):
            got = masked(command, as_json(reply))
            if got != wanted:
                where = f"run {run.number} (RESP{run.resp}) step {number}"
                found.append(f"{where}: {command}\n  redis: {wanted}\n  here:  {got}")
                break
    return found


def test_every_recorded_command_answers_the_same_in_process(runs: list[Run]) -> None:
    """In process, each of the 90,000 recorded commands gets Redis's recorded reply."""
    world = World(logged=False)
    client = world.client()

    def ask(commands: list[list[bytes]]) -> list[object]:
        replies = []
        for command in commands:
            world.clock.advance(1)
            replies.append(client.call(*command))
        return replies

    assert not differences(runs, ask)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_recorded_commands_answer_the_same_out_of_snapshots(runs: list[Run], every: int) -> None:
    """Replies stay equal to the recorded ones if the keyspace is saved to a snapshot and restored every 37 commands.

    This runs each third run of the recording, in RESP2 and RESP3 by turns; ``make test-long`` runs all of them.
    """
    world = World(logged=False)
    client = world.client()
    done = 0

    def ask(commands: list[list[bytes]]) -> list[object]:
        nonlocal done
        replies = []
        for command in commands:
            world.clock.advance(1)
            replies.append(client.call(*command))
            done += 1
            if done % 37 == 0:
                before = snapshot(world.node)
                fresh = rebuilding.from_log(payloads(world.node.keyspace, 0))
                for mine, theirs in zip(world.node.keyspace.databases, fresh.databases, strict=True):
                    assert list(mine.keys) == list(theirs.keys), "the order of keys shows in KEYS"
                rebuilding.adopt(world.node.keyspace, fresh)
                assert snapshot(world.node) == before
                check(world.node)
        return replies

    assert not differences(runs[::every], ask)
    assert done > COMMANDS // every


def test_every_recorded_command_answers_the_same_over_a_socket(runs: list[Run], tmp_path: Path) -> None:
    """Pipelined through the network server, each of the 90,000 recorded commands gets Redis's recorded reply."""
    with millstream_server(tmp_path, "--memory") as server:
        pipe = Pipe(server.port)
        try:
            assert not differences(runs, pipe.ask)
        finally:
            pipe.close()


def test_a_wrong_reply_would_be_seen(runs: list[Run]) -> None:
    """The comparison reports a single changed reply with its place."""
    run = runs[0]
    number, recorded = next((at, step[1]) for at, step in enumerate(run.steps) if isinstance(step[1], int))

    def ask(commands: list[list[bytes]]) -> list[object]:
        if commands is run.setup:
            return [1] * len(commands)
        return [_back(step[1]) if at != number else recorded + 1 for at, step in enumerate(run.steps)]

    assert f"step {number}:" in differences([run], ask)[0]


def _back(value: object) -> object:
    """Convert the recorded form to a decoded reply."""
    if isinstance(value, str):
        return value.encode("latin-1")
    if isinstance(value, list):
        return [_back(item) for item in value]
    if isinstance(value, dict):
        (kind, inner), *_ = value.items()
        if kind == "+":
            return Simple(inner.encode("latin-1"))
        if kind == "-":
            return Error(inner)
        return Pairs([[_back(key), _back(item)] for key, item in inner])
    return value
