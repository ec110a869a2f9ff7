"""Putting back over a breaking connection loses no dead letter and adds none twice, on both servers."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream.client.dead_letter import put_back
from millstream.client.dead_letter.admin import DeadLetterAdmin
from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.line import Line
from millstream.errors import MillstreamError
from support.servers import ServerProcess
from support.thief import Thief
from support.waiting import aeventually

LAST = "18446744073709551615-18446744073709551615"

#: In the transaction alone (not in the empty one that is tried before it, nor in ACL DRYRUN), and in the writing again.
EXEC, AGAIN = b"*3\r\n$4\r\nXDEL\r\n", b"\r\nXADD\r\n$6\r\ns:dead\r\n"


def add_letter(client: redis.Redis, number: int, stream: str) -> None:
    letter = DeadLetter((b"n", b"1"), stream, f"{number}-0", "g", "c", 1, "reject", "no", "", 1, 2)
    client.execute_command("XADD", "s:dead", f"{number}-0", *pack(letter))


def ids(client: redis.Redis, key: str) -> list[str]:
    """Return the original ids of the dead letters, or of the entries put back, in a stream."""
    rows: Any = client.xrange(key)
    return [fields["_dead.id"] for _, fields in rows if "_dead.id" in fields]


def stored_ids(client: redis.Redis) -> list[str]:
    """Return the dead letters' own ids."""
    rows: Any = client.xrange("s:dead")
    return [entry for entry, _ in rows]


async def retried(port: int, *wanted: str, patience: float = 60) -> put_back.PutBackOutcome:
    line, outcome = Line(f"redis://127.0.0.1:{port}/0"), put_back.PutBackOutcome()
    try:
        await DeadLetterAdmin(line, "s:dead", patience=patience).put_back(wanted, all_groups=True, outcome=outcome)
    finally:
        await line.close()
    return outcome


@pytest.mark.parametrize(
    ("word", "through"),
    [(EXEC, True), (AGAIN, False), (AGAIN, True)],
    ids=["after EXEC", "before it is written again", "after it was written again"],
)
async def test_a_letter_that_was_refused_inside_exec_is_written_again_over_the_next_connection(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, word: bytes, through: bool
) -> None:
    """A dead letter that EXEC removed although its stream took no entry is written again once.

    The others are put back.
    """
    # simulates a hindrance between the check and EXEC: the check finds nothing
    monkeypatch.setattr(put_back, "hindrance", lambda *_: None)
    client.xadd("full", {"x": 1}, id=LAST)
    for number, stream in enumerate(("s", "full", "s"), 1):
        add_letter(client, number, stream)
    async with Thief(server.port, word, through=through) as thief:
        outcome = await retried(thief.port, "1-0", "2-0", "3-0")
        assert thief.stolen == 1
    assert ids(client, "s:dead") == ["2-0"]
    assert client.xlen("s") == 2
    assert [letter for letter, _, _ in outcome.returned] == ["1-0", "3-0"]
    ((letter, why),) = outcome.refused
    (kept,) = stored_ids(client)
    assert (letter, why.partition("; ")[2]) == ("2-0", f"the letter is now {kept}")


@pytest.mark.parametrize("through", [False, True], ids=["before EXEC", "after EXEC"])
async def test_letters_are_put_back_once_though_the_connection_breaks_at_exec(
    server: ServerProcess, client: redis.Redis, through: bool
) -> None:
    """If the connection breaks at EXEC, each letter is put back once, and the outcome reports it as returned."""
    for number in (1, 2):
        add_letter(client, number, "s")
    async with Thief(server.port, EXEC, through=through) as thief:
        outcome = await retried(thief.port, "1-0", "2-0")
        assert thief.stolen == 1
    entries: Any = client.xrange("s")
    assert outcome.returned == [("1-0", "s", entries[0][0]), ("2-0", "s", entries[1][0])]
    assert (len(entries), client.xlen("s:dead"), outcome.refused) == (2, 0, [])


async def test_an_entry_that_was_handled_and_deleted_meanwhile_is_said_to_be_unknown(
    server: ServerProcess, client: redis.Redis
) -> None:
    """If the entry was handled and deleted meanwhile, its letter is restored, with a warning that it may have run."""
    add_letter(client, 1, "s")
    async with Thief(server.port, EXEC, then=lambda: client.xtrim("s", maxlen=0, approximate=False)) as thief:
        outcome = await retried(thief.port, "1-0")
    assert ids(client, "s:dead") == ["1-0"]
    assert "look before you put it back again" in outcome.refused[0][1]


async def test_a_stream_that_takes_no_entry_keeps_its_letters_untouched(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A dead letter whose stream cannot take an entry is refused before anything is sent, and keeps its id."""
    client.xadd("full", {"x": 1}, id=LAST)
    add_letter(client, 1, "full")
    outcome = await retried(server.port, "1-0")
    assert stored_ids(client) == ["1-0"]
    assert outcome.refused == [("1-0", f"full has the last id {LAST}, and no 1 ids are left after it")]


async def test_the_letters_of_a_server_that_stays_away_are_in_the_outcome(
    server: ServerProcess, client: redis.Redis
) -> None:
    """If the server stays away, the outcome returns the letters whose state is unknown."""
    add_letter(client, 1, "s")
    async with Thief(server.port, EXEC, for_good=True) as thief:
        line, outcome = Line(f"redis://127.0.0.1:{thief.port}/0"), put_back.PutBackOutcome()
        admin = DeadLetterAdmin(line, "s:dead", patience=0.3)
        with pytest.raises(MillstreamError, match="went away while 1 of its letters"):
            await admin.put_back(["1-0"], all_groups=True, outcome=outcome)
        await line.close()
    assert [one.id for one in outcome.unsettled] == ["1-0"]


async def test_the_interrupted_command_prints_letters_that_may_be_nowhere(
    server: ServerProcess, client: redis.Redis
) -> None:
    """An interrupted ``dead retry`` prints the letters with unknown state as JSON lines on standard error."""
    add_letter(client, 1, "s")
    async with Thief(server.port, EXEC, for_good=True) as thief:
        words = ("dead", "retry", "s", "1-0", "--all-groups", "--url", f"redis://127.0.0.1:{thief.port}/0")
        program = str(Path(sys.executable).with_name("millstream"))
        command = await asyncio.create_subprocess_exec(program, *words, stderr=PIPE)
        await aeventually(lambda: thief.stolen == 1)
        command.send_signal(signal.SIGINT)
        _, said = await command.communicate()
    assert command.returncode == 130
    facts = [json.loads(line) for line in said.splitlines() if line.startswith(b"{")]
    assert [(one["id"], one["fields"]) for one in facts] == [("1-0", [["n", "1"]])]
