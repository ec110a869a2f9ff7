"""Reports of a failure in the log, the registry and the dead letter: useful and harmless."""

import asyncio
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from pydantic import BaseModel, field_validator

from millstream import App, Depends, Message, Middleware, Nack, Reject, Retry, StreamSub
from millstream.cli.main import main
from millstream.client.dead_letter.letter import unpack
from support.servers import ServerProcess
from support.waiting import aeventually

ONCE = Retry(max_deliveries=1)
EVIL = "\x1b[2Jgone\x07\x9b31m\u202e"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The output of a program's own plain logging."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("millstream").addHandler(handler)
    yield stream
    logging.getLogger("millstream").removeHandler(handler)


async def test_no_control_character_of_others_reaches_the_log(
    server: ServerProcess, client: redis.Redis, written: io.StringIO
) -> None:
    """Control characters in an error's message or traceback are escaped in the log. The dead letter keeps them."""
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g"), retry=ONCE)
    async def handle(word: str) -> None:
        raise ValueError(word)

    async with app.running():
        client.xadd("s", {"word": EVIL})
        await aeventually(lambda: client.xlen("s:dead") == 1)
    text = written.getvalue()
    assert text.count("\\x1b[2Jgone\\x07\\x9b31m\\u202e") >= 2, text
    assert "Traceback" in text
    assert [character for character in text if not character.isprintable() and character != "\n"] == []
    ((_, fields),) = client.xrange("s:dead")
    assert EVIL in fields["_dead.error"], "the letter has it as it was"


async def test_no_text_of_others_passes_for_a_line_of_the_log(
    server: ServerProcess, client: redis.Redis, written: io.StringIO
) -> None:
    """Text of a pause or an exception cannot begin a line of the log. Python's own traceback keeps its lines."""
    forged = "2026-03-01 ERROR all is lost"
    app = App(server.url)

    @app.subscriber(StreamSub("s", group="g"), retry=ONCE)
    async def handle(word: str) -> None:
        error = ValueError(word)
        error.add_note(f" said\n{word}")
        raise error from KeyError(word)

    async with app.running():
        client.xadd("s", {"word": f"x\n{forged}\r\n\n{forged}"})
        await aeventually(lambda: client.xlen("s:dead") == 1)
        done = await asyncio.to_thread(
            CliRunner().invoke, main, ["worker", "pause", "s", "g", "--reason", f"x\n{forged}", "--url", server.url]
        )
        assert done.exit_code == 0, done.output
        await aeventually(lambda: "paused by" in written.getvalue())
    lines = written.getvalue().splitlines()
    assert sum(forged in line for line in lines) >= 4
    assert [line for line in lines if line.startswith(forged)] == []
    assert "Traceback (most recent call last):" in lines


async def test_records_of_failures_say_which_entry(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Log records of failures carry stream, group, consumer, id and delivery as attributes."""
    caplog.set_level(logging.WARNING, "millstream.worker")
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g"), retry=ONCE)
    async def handle(x: int) -> None:
        raise ValueError(x)

    async with app.running():
        entry = client.xadd("s", {"x": 1})
        await aeventually(lambda: client.xlen("s:dead") == 1)
        consumer = app.loops[0].member.consumer
    failed, dead = caplog.records
    assert "failed" in failed.getMessage()
    assert "dead letter" in dead.getMessage()
    names = ("stream", "group", "consumer", "entry_id", "delivery")
    for record in (failed, dead):
        assert [getattr(record, name) for name in names] == ["s", "g", consumer, entry, 1]


async def test_the_last_error_is_named_as_in_the_letter(server: ServerProcess, client: redis.Redis) -> None:
    """The worker's last error has the same text as the dead letter, without the module of the class."""
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g"), retry=ONCE)
    async def handle(x: int) -> None: ...

    async with app.running():
        client.xadd("s", {"x": "12,50"})
        await aeventually(lambda: client.xlen("s:dead") == 1)
        ((_, letter),) = client.xrange("s:dead")
        assert app.loops[0].last_error is not None
        assert app.loops[0].last_error["error"] == letter["_dead.error"]
        assert letter["_dead.error"].startswith("PayloadError: x: ")


async def test_the_last_error_of_a_nack_is_its_cause(server: ServerProcess, client: redis.Redis) -> None:
    """The error from which a handler raised Nack is named in the log, and with its traceback in the dead letter."""
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g"), retry=ONCE)
    async def handle(do: str, msg: Message) -> None:
        try:
            charge()
        except TimeoutError as error:
            if do == "from":
                raise Nack("later") from error
            if do == "bare":
                raise Nack from None
            if do == "method":
                await msg.nack()
            else:
                raise Reject from error

    said = {}
    async with app.running():
        for number, do in enumerate(("from", "bare", "method", "reject"), 1):
            client.xadd("s", {"do": do})
            await aeventually(lambda number=number: client.xlen("s:dead") == number)
            assert app.loops[0].last_error is not None
            said[do] = app.loops[0].last_error["error"]
    why = "TimeoutError: the card provider is away"
    assert said == {
        "from": f"{why} (Nack: later)",
        "bare": "Nack",
        "method": f"{why} (Nack)",
        "reject": f"{why} (Reject)",
    }
    letters: Any = {fields["do"]: fields for _, fields in client.xrange("s:dead")}
    assert {do: fields["_dead.error"] for do, fields in letters.items()} == {
        "from": "later",
        "bare": "",
        "method": why,
        "reject": why,
    }
    assert "the card provider is away" in letters["from"]["_dead.traceback"]


class Around(Middleware):
    async def run(self, call_next: Any, msg: Message) -> Any:
        return await call_next(msg)


async def session() -> int:
    return 1


@pytest.mark.parametrize("way", ["async", "thread", "batch", "around"])
async def test_a_traceback_begins_at_the_users_own_code(
    server: ServerProcess, client: redis.Redis, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A traceback in the dead letter and the log begins at the user's own code."""
    app = App(server.url, registry=False)
    sub = StreamSub("s", group="g")

    if way == "thread":

        @app.subscriber(sub, retry=ONCE)
        def plain(x: int) -> None:
            below()
    elif way == "batch":

        @app.subscriber(sub, retry=ONCE, batch=True)
        async def batch(x: list[int]) -> None:
            below()
    elif way == "around":

        @app.subscriber(sub, retry=ONCE, middlewares=[Around()])
        async def around(x: int, db: int = Depends(session)) -> None:
            below()
    else:

        @app.subscriber(sub, retry=ONCE)
        async def handle(x: int) -> None:
            below()

    async with app.running():
        client.xadd("s", {"x": 1})
        await aeventually(lambda: client.xlen("s:dead") == 1)
    with server.client() as raw:
        ((_, fields),) = raw.xrange("s:dead")
    letter = unpack([part for pair in fields.items() for part in pair])
    head, first, *_ = letter.traceback.splitlines()
    assert head == "Traceback (most recent call last):"
    assert "test_failures_told.py" in first
    assert "in below" in letter.traceback
    logged = next(record for record in caplog.records if record.exc_info)
    assert logged.exc_info is not None
    assert logged.exc_info[2] is not None
    assert logged.exc_info[2].tb_frame.f_code.co_filename == __file__


class Ratio(BaseModel):
    """A model with a validator of the user's own."""

    x: int

    @field_validator("x", mode="before")
    @classmethod
    def fits(cls, x: str) -> int:
        """Raise an error that pydantic reports as invalid input."""
        return 1 // int(x)


@pytest.mark.parametrize(("model", "seen"), [(int, False), (Ratio, True)], ids=["ours", "users"])
async def test_an_invalid_entry_shows_no_frames_of_ours(
    server: ServerProcess, client: redis.Redis, model: type, seen: bool
) -> None:
    """A dead letter of an invalid entry has a traceback only if the user's validator ran.

    It shows no Millstream frames.
    """
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: model) -> None:  # type: ignore[valid-type]  # it is the case
        pass

    async with app.running():
        client.xadd("s", {"x": "0" if seen else "no number"})
        await aeventually(lambda: client.xlen("s:dead") == 1)
    with server.client() as raw:
        ((_, fields),) = raw.xrange("s:dead")
    letter = unpack([part for pair in fields.items() for part in pair])
    assert (letter.reason, "PayloadError: x: " in letter.error) == ("invalid", True)
    assert ("in fits" in letter.traceback) is seen
    assert "millstream/worker" not in letter.traceback
    assert bool(letter.traceback) is seen


def charge() -> None:
    """Raise an error for a handler to catch."""
    raise TimeoutError("the card provider is away")


def below() -> None:
    """Raise an error in a nested call."""
    raise ValueError("no good")
