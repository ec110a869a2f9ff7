"""One spelling of times and durations in every subcommand and option."""

import re
from contextlib import suppress

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from millstream import App, Disconnected, Message, Nack, Retry, StreamSub, once
from millstream.cli.main import main
from millstream.errors import ConfigError, UsageError
from millstream.maintenance.log.moment import parse_moment
from millstream.spark.options import read as options
from millstream.spark.options import write
from millstream.times import INSTANT, SPAN, instant, is_relative, span
from millstream.worker.handlers.middleware import Timeout
from millstream.worker.testing import run

NOW = 1_772_366_400_250  # 2026-03-01T12:00:00.250Z

SPANS = {
    "500ms": 500, "30s": 30_000, "10m": 600_000, "12h": 43_200_000, "7d": 604_800_000, "1h30m": 5_400_000,
    "1h 30m": 5_400_000, "1.5h": 5_400_000, "2 D": 172_800_000, "0s": 0,
    " 10M ": 600_000, "90 s": 90_000,
}  # fmt: skip
NO_SPANS = [
    "",
    "10",
    "m",
    "10x",
    "10 m ago",
    "-5m",
    "1h-",
    "ten minutes",
    "10 minutes",
    "1e3s",
    "٣m",
    "10m\x00",
    "5mm",
    "1hs3",
]
INSTANTS = {
    "10m": NOW - 600_000, "10m ago": NOW - 600_000, "10m-ago": NOW - 600_000,
    "1h30m ago": NOW - 5_400_000, "2 d ago": NOW - 172_800_000,
    "now": NOW, "1772366400250": NOW, "1772366400250-7": NOW, "0": 0, "2026-03-01T12:00:00.250": NOW,
    "2026-03-01T12:00:00.250Z": NOW, "2026-03-01T13:00:00.250+01:00": NOW, "20260301T120000.250": NOW,
    "2026-03-01": NOW - 43_200_250, "1969-12-31T23:59:59Z": -1000,
}  # fmt: skip


@pytest.mark.parametrize("text", SPANS)
def test_a_length_of_time(text: str) -> None:
    """Durations have units from milliseconds to days, which add up."""
    assert span(text) == SPANS[text]


@pytest.mark.parametrize("text", NO_SPANS)
def test_what_is_no_length_of_time(text: str) -> None:
    """An invalid duration is refused with the valid forms."""
    with pytest.raises(ValueError, match=re.escape(SPAN)):
        span(text)


def test_a_number_without_a_unit_means_what_the_option_says() -> None:
    """A number without a unit is in the option's own unit where it has one. The longest duration is a century."""
    assert (span("1.5", "s"), span("250", "ms")) == (1500, 250)
    with pytest.raises(ValueError, match="hundred years"):
        span("99999999d")


@pytest.mark.parametrize("text", INSTANTS)
def test_a_time(text: str) -> None:
    """A time is ISO 8601, a duration before now, ``now``, milliseconds, or an entry's id."""
    assert instant(text, NOW) == INSTANTS[text]
    assert is_relative(text) == (text == "now" or text[-1] in "om")


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-03", "10m later", "ago", "1-1", "9" * 30, "٣"])
def test_what_is_no_time(text: str) -> None:
    """An invalid time is refused with every valid form."""
    with pytest.raises(ValueError, match=re.escape(INSTANT)):
        instant(text, NOW)


@given(st.text(max_size=40))
def test_no_text_ends_a_reader(text: str) -> None:
    """Any text as a duration or time gives a number or the documented error."""
    for read in (span, lambda text: instant(text, NOW), lambda text: parse_moment(text, NOW)):
        with suppress(ValueError, UsageError):
            read(text)


NOWHERE = "redis://127.0.0.1:1"
OPTIONS = [
    ("dead", "ls", "orders", "--since"), ("dead", "retry", "orders", "--until"), ("dead", "rm", "orders", "--since"),
    ("dead", "export", "orders", "--until"), ("worker", "reap", "orders", "--idle"), ("run", "x:y", "--grace"),
    ("recover", "s", "--group", "g", "--verdict", "ack", "--min-idle"), ("doctor", "--pending-older"),
    ("archive", NOWHERE, "s", "--to", "a", "--every"), ("archive", NOWHERE, "s", "--to", "a", "--keep"),
    ("replay", "a", "s", "--to", NOWHERE, "--since"), ("replay", "a", "s", "--to", NOWHERE, "--until"),
    ("log", "dump", ".", "--from"), ("restore", "a", "b", "--until"),
]  # fmt: skip


@pytest.mark.parametrize("words", OPTIONS, ids=lambda words: " ".join([*words[:2], words[-1]]))
def test_every_option_says_how_times_are_written(words: tuple[str, ...]) -> None:
    """Every option refuses a wrong time with the same sentence and code 2, and its help shows the form."""
    done = CliRunner().invoke(main, [*words, "soonish"])
    assert (done.exit_code, done.stdout) == (2, ""), done.exception
    said = " ".join(done.stderr.replace("│", " ").split())
    assert SPAN in said or INSTANT in said
    depth = 2 if words[0] in {"dead", "worker", "log"} else 1
    text = CliRunner().invoke(main, [*words[:depth], "--help"]).output
    assert re.search(r"\b10m|30s|Times are ISO", text)


def test_a_workers_options_read_the_same() -> None:
    """Worker settings take durations as text, and numbers in their own unit."""
    app = App(grace="2m", reap_after="1h30m")
    assert (app.grace, app.reap_after, App(reap_after=None).reap_after) == (120.0, 5400.0, None)
    sub = StreamSub("s", min_idle_time="10m", polling_interval="1.5s")
    assert (sub.min_idle_time, sub.polling_interval) == (600_000, 1500)
    assert Retry(base="2s", max_delay="1h", jitter=False).delay(20, 0) == 3600
    assert Timeout("500ms").seconds == 0.5
    for make, said in (
        (lambda: App(grace="soon"), "App(grace='soon') is invalid: "),
        (lambda: StreamSub("s", min_idle_time="10"), "StreamSub(min_idle_time='10') is invalid: "),
        (lambda: Retry(max_delay="x"), "Retry(max_delay='x') is invalid: "),
        (lambda: Timeout("x"), "Timeout('x') is invalid: "),
    ):
        with pytest.raises(ConfigError, match=re.escape(said + SPAN)):
            make()


async def test_what_is_said_while_a_worker_runs_reads_the_same() -> None:
    """Delays, patience, retries and the testing kit's steps take durations as text or numbers."""
    assert (Nack(delay="10m").delay, Nack(delay=2).delay) == (600.0, 2.0)
    with pytest.raises(UsageError, match=r"Nack\(delay='soon'\) is invalid: it must be a length of .*raise Reject"):
        Nack(delay="soon")
    app = App(NOWHERE)
    for retry in ("50ms", 0.05):
        with pytest.raises(Disconnected):
            await app.publish("s", {"n": 1}, retry=retry)
    for odd in ("soon", -1, "0s", float("nan")):
        with pytest.raises(UsageError, match=r"publish\(retry="):
            await app.publish("s", {"n": 1}, retry=odd)
    seen: list[str] = []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(msg: Message) -> None:
        await once(msg, ("SET", "k", 1), ttl="1h")
        seen.append(msg.id)
        if len(seen) == 1:
            raise Nack(delay="10m")

    for patience in ("50ms", 0):
        with pytest.raises(Disconnected):
            async with app.running(patience=patience, grace="1s"):
                pass
    with pytest.raises(ConfigError, match=r"App.running\(patience='soon'\) is invalid: "):
        async with app.running(patience="soon"):
            pass
    async with run(app) as broker:
        await broker.publish("s", {"n": 1})
        await broker.run_until_idle()
        await broker.advance("9m")
        assert len(seen) == 1
        await broker.advance("1m")
        assert len(seen) == 2


def test_sparks_options_read_the_same() -> None:
    """Spark options take durations as text, and times before now."""
    given = {"url": NOWHERE, "stream": "s", "startingTimestamp": "10m ago"}
    waiting = {"maxTriggerDelay": "1h30m", "minEntriesPerTrigger": "5"}
    assert options.parse(given | waiting).max_delay_ms == 5_400_000
    assert write.parse({"url": NOWHERE, "stream": "s", "retention": "2 d"}).retention_ms == 172_800_000
    with pytest.raises(ConfigError, match="it must be milliseconds since 1970 or a time such as"):
        options.parse({**given, "startingTimestamp": "soonish"})
