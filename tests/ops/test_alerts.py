"""Alerts: when they open and close, their entries, quiet hours, and the one writer on a real server."""

import asyncio
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.alerts import store
from millstream.errors import UsageError
from millstream.ops.alerts.reading import read_alerts
from millstream.ops.alerts.status import (
    CLOSES_MS,
    OPEN,
    OPENS_MS,
    Alert,
    AlertBoard,
    AlertEvent,
    event_of,
    folded,
    words_of,
)
from millstream.ops.notifying.hooks import CommandHook, HookError, HookRefusedError, note_of, signature, webhook
from millstream.ops.notifying.quiet import quiet_hours
from millstream.ops.notifying.sending import HookQueue
from millstream.ops.notifying.watcher import AlertWatcher
from millstream.ops.watching.servers import ConsoleServer
from ops.conftest import Look
from support.receiver import SECRET, receiver, verified
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import aeventually

ALERT = Alert("a1", "nobody-reads", "problem", "entries wait", since_ms=5, affects=("billing on orders: 3 pending",))
DOWN = "redis://:hunter2@127.0.0.1:1/0"


def row(event: AlertEvent) -> list[Any]:
    return [b"7-0", [word.encode() for word in words_of(event)]]


def test_an_alert_opens_when_its_cause_lasts_and_closes_when_it_is_absent() -> None:
    """A cause opens an alert after ten seconds, and its absence closes it after a minute. The end is its last sight."""
    board = AlertBoard()
    assert board.update([ALERT], 1000) == []
    (opened,) = board.update([ALERT], 1000 + OPENS_MS)
    assert (opened.became, opened.alert.opened_ms, opened.alert.closed_ms) == ("opened", 1000 + OPENS_MS, None)
    assert board.update([ALERT], 50_000) == board.update([], 50_000 + CLOSES_MS - 1) == []
    (closed,) = board.update([], 50_000 + CLOSES_MS)
    assert (closed.became, closed.alert.closed_ms, closed.alert.for_ms(10**9)) == ("closed", 50_000, 49_995)
    assert board.update([], 10**7) == []


@pytest.mark.parametrize(
    ("code", "ms"), [("memory-near-limit", 60_000), ("spilling-fails", 600_000), ("removed-unread", 0)]
)
def test_some_causes_open_an_alert_later_or_at_once(code: str, ms: int) -> None:
    """Memory near its limit may pass, a full disk is looked at again, and an event is over at once."""
    board, alert = AlertBoard(), replace(ALERT, code=code)
    assert [now for now in (1000, 999 + ms, 1000 + ms) if board.update([alert], now)] == [1000 + ms]


def test_a_clock_that_is_set_back_delays_nothing() -> None:
    """After the clock was set back by a day, a cause opens its alert and closes it in the usual times."""
    board, day = AlertBoard(), 86_400_000
    assert board.update([ALERT], day) == board.update([ALERT], 1000) == []
    (opened,) = board.update([ALERT], 1000 + OPENS_MS)
    assert opened.became == "opened"
    assert board.update([ALERT], day) == board.update([], 1000) == []
    (closed,) = board.update([], 1000 + CLOSES_MS)
    assert closed.became == "closed"


def test_a_moment_and_a_hint_open_no_alert() -> None:
    """A cause that a single reading shows, and a hint, open nothing."""
    board = AlertBoard()
    for now_ms in range(0, 100_000, 20_000):
        assert board.update([ALERT], now_ms) == board.update([replace(ALERT, level="hint")], now_ms + 5) == []
        assert board.update([], now_ms + 10) == []


def test_an_alert_that_gets_worse_opens_again_as_a_problem() -> None:
    """Hooks for problems alone are told of a warning that became one, with the time at which it opened."""
    board, warning = AlertBoard(), replace(ALERT, level="warning", says="entries may wait")
    board.update([warning], 1000)
    (opened,) = board.update([warning], 1000 + OPENS_MS)
    (worse,) = board.update([ALERT], 2000 + OPENS_MS)
    assert (worse.became, worse.alert.level, worse.alert.says) == ("opened", "problem", "entries wait")
    assert worse.alert.opened_ms == opened.alert.opened_ms
    assert note_of(worse, "s", 0)["delivery"] != note_of(opened, "s", 0)["delivery"]
    assert board.update([ALERT], 3000 + OPENS_MS) == board.update([warning], 4000 + OPENS_MS) == []


def test_an_alert_that_flaps_does_not_fill_the_stream() -> None:
    """A cause that comes and goes every two minutes makes a bounded number of entries in a day."""
    board, written = AlertBoard(), 0
    for now_ms in range(0, 86_400_000, 10_000):
        there = [ALERT] if now_ms % 240_000 < 120_000 else []
        written += len(board.update(there, now_ms))
    assert 2 <= written <= 20


def test_open_alerts_are_limited() -> None:
    """However many causes a server has, the number of open alerts is bounded."""
    board, many = AlertBoard(), [replace(ALERT, id=f"a{number}") for number in range(OPEN * 2)]
    board.update(many, 0)
    assert len(board.update(many, OPENS_MS)) == len(board.open) == OPEN


def test_a_new_writer_continues_the_open_alerts() -> None:
    """Open alerts on the server are not opened again, and close when their cause is absent."""
    known = folded([AlertEvent("opened", replace(ALERT, opened_ms=9))])
    board = AlertBoard(known, 100)
    assert board.update([ALERT], 50_000) == []
    (closed,) = board.update([], 50_000 + CLOSES_MS)
    assert closed.alert.opened_ms == 9


def test_events_are_kept_and_read_back() -> None:
    """An entry holds all about its alert, so a closing alone is enough to list it."""
    opened = AlertEvent("opened", replace(ALERT, opened_ms=9, remedy="millstream worker ls"), "7-0")
    closed = AlertEvent("closed", replace(opened.alert, closed_ms=20), "7-0")
    assert [event_of(row(opened)), event_of(row(closed))] == [opened, closed]
    assert folded([opened, closed]) == folded([closed]) == (closed.alert,)


@given(st.lists(st.binary(max_size=20), max_size=12), st.binary(max_size=30), st.binary(max_size=30))
def test_a_forged_entry_is_bounded(words: list[bytes], says: bytes, opened: bytes) -> None:
    """An entry of a client is skipped, or shown in bounded one-line texts."""
    flat = [*words[: len(words) // 2 * 2], b"event", b"opened", b"alert", says * 99, b"opened_ms", opened, b"says"]
    found = event_of([b"1-0", [*flat, says * 999]])
    assert found is None or (len(found.alert.says) <= 300 and "\n" not in found.alert.says)
    assert event_of([b"1-0", flat[:-1]]) is None or opened.isdigit()


@pytest.mark.parametrize(
    ("text", "zone", "at", "quiet"),
    [
        ("22:00-07:00", "Europe/Vienna", datetime(2026, 7, 1, 20, 30, tzinfo=UTC), True),  # 22:30 in summer
        ("22:00-07:00", "Europe/Vienna", datetime(2026, 1, 1, 20, 30, tzinfo=UTC), False),  # 21:30 in winter
        ("22:00-07:00", "UTC", datetime(2026, 1, 1, 6, 59, tzinfo=UTC), True),
        ("22:00-07:00", "UTC", datetime(2026, 1, 1, 7, 0, tzinfo=UTC), False),
        ("9:00-17:30", "UTC", datetime(2026, 1, 1, 17, 29, tzinfo=UTC), True),
        ("9:00-17:30", "UTC", datetime(2026, 1, 1, 8, 59, tzinfo=UTC), False),
    ],
)
def test_quiet_hours_follow_the_clocks_of_their_zone(text: str, zone: str, at: datetime, quiet: bool) -> None:
    """Quiet hours may pass midnight, and follow summer time."""
    assert quiet_hours(text, zone).cover(int(at.timestamp() * 1000)) is quiet


@pytest.mark.parametrize(("text", "zone"), [("22-7", "UTC"), ("25:00-07:00", "UTC"), ("22:00-07:00", "../etc/passwd")])
def test_wrong_quiet_hours_are_refused(text: str, zone: str) -> None:
    """A wrong time and an unknown time zone are refused with the reason."""
    with pytest.raises(UsageError, match="is invalid"):
        quiet_hours(text, zone)


@pytest.mark.parametrize(
    "url", ["ftp://x/", "http://", "https://user:pass@x/", "https://x/\r\nHost: y", "x", "http://x:0/"]
)
def test_a_url_that_is_no_webhook_is_refused_without_its_text(url: str) -> None:
    """A URL that cannot be used is refused. The message does not quote it, since it may contain a token."""
    with pytest.raises(UsageError) as refused:
        webhook(url, SECRET)
    assert url not in str(refused.value)
    with pytest.raises(UsageError, match="needs a secret"):
        webhook("https://x/", "")


async def test_a_webhook_is_signed_and_shows_no_secret() -> None:
    """A receiver verifies the signature, and neither message nor errors contain the URL's token or the secret."""
    async with receiver() as found:
        hook = webhook(found.url, SECRET)
        await hook.send(note_of(AlertEvent("opened", ALERT), "s", 9))
        (note,) = found.notes
        assert (note["event"], note["server"], note["alert"]["says"]) == ("opened", "s", "entries wait")
        for mode, kind in (("500", HookError), ("302", HookRefusedError), ("404", HookRefusedError)):
            found.mode = mode
            with pytest.raises(kind) as failed:
                await hook.send(note)
            assert "a-token" not in str(failed.value) + repr(hook)
            assert SECRET not in repr(hook)
        assert found.tries == 4  # a redirect is not followed


def test_the_documented_function_verifies_a_signature() -> None:
    """The function of docs/monitoring.md accepts a signature, and refuses another body, secret or time."""
    now = int(time.time())
    header = signature(SECRET.encode(), now, b"{}")
    assert verified(b"{}", header, SECRET)
    assert not verified(b"{ }", header, SECRET)
    assert not verified(b"{}", header, "another")
    assert not verified(b"{}", signature(SECRET.encode(), now - 3600, b"{}"), SECRET)


@pytest.mark.parametrize("mode", ["hang", "endless"])
async def test_a_receiver_that_hangs_or_never_ends_costs_one_time_limit(mode: str) -> None:
    """A receiver that sends nothing or endless bytes ends in an error, and its bytes are not kept."""
    async with receiver() as found:
        found.mode = mode
        with pytest.raises(HookError):
            await replace(webhook(found.url, SECRET), timeout=0.3).send({"delivery": "1"})


async def test_a_certificate_of_nobody_is_refused(tmp_path: Any) -> None:
    """TLS is verified: a certificate of an unknown authority is refused."""
    import ssl

    from support.certificates import make_certificates

    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.file("server.crt"), made.file("server.key"))
    async with receiver(context) as found:
        with pytest.raises(HookError, match="certificate"):
            await webhook(found.url, SECRET).send({"delivery": "1"})
        assert found.tries == 0


async def test_a_command_gets_the_message_and_no_secrets(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command gets JSON on standard input without a shell, and not the secrets in the environment."""
    monkeypatch.setenv("MILLSTREAM_ALERT_SECRET", "hunter2")
    out = tmp_path / "got"
    script = tmp_path / "notify"
    script.write_text(f'#!/bin/sh\n(cat; env; echo "$1") > {out}\n')
    script.chmod(0o755)
    await CommandHook((str(script), "$(touch x); ok")).send({"event": "test"})
    said = out.read_text()
    assert said.startswith('{"event": "test"}')
    assert "hunter2" not in said
    assert said.endswith("$(touch x); ok\n")
    with pytest.raises(HookError, match="status 3"):
        await CommandHook(("sh", "-c", "exit 3")).send({})
    with pytest.raises(HookError, match="did not end"):
        await CommandHook(("sh", "-c", "sleep 99 & sleep 99"), timeout=0.2).send({})
    with pytest.raises(HookError):
        await CommandHook((str(tmp_path / "nothing"),)).send({})


async def test_a_hook_is_tried_again_and_told_once() -> None:
    """A message is tried again with the same id until it is received, then stored as sent and not sent again."""
    told: list[tuple[str, str]] = []

    async def note(hook: str, entry: str) -> None:
        told.append((hook, entry))

    async with receiver() as found:
        found.mode = "500"
        queue = HookQueue(webhook(found.url, SECRET), "s", sent=note, pauses=(0.01,) * 500)
        task = asyncio.create_task(queue.run())
        event = AlertEvent("opened", ALERT, "7-0")
        queue.put(event)
        queue.put(event)
        await aeventually(lambda: found.tries > 2)
        found.mode = "ok"
        assert await queue.flush(30)
        assert [note["delivery"] for note in found.notes] == ["7-0"]
        assert told == [("webhook", "7-0")]
        task.cancel()


async def test_many_alerts_at_once_are_one_message() -> None:
    """More than five waiting events are one summary with their numbers, and the last one is stored as sent."""
    told: list[tuple[str, str]] = []

    async def note(hook: str, entry: str) -> None:
        told.append((hook, entry))

    async with receiver() as found:
        queue = HookQueue(webhook(found.url, SECRET), "s", sent=note)
        for number in range(90):
            queue.put(AlertEvent("opened", replace(ALERT, id=f"a{number}"), f"{number + 1}-0"))
        queue.put(AlertEvent("closed", replace(ALERT, closed_ms=9), "91-0"))
        task = asyncio.create_task(queue.run())
        assert await queue.flush(30)
        queue.put(AlertEvent("closed", replace(ALERT, id="a1", closed_ms=9), "92-0"))
        assert await queue.flush(30)
        summary, alone = found.notes
        assert (summary["event"], summary["says"], summary["found"]) == (
            "summary",
            "90 alerts opened and 1 alert closed",
            91,
        )
        assert [one["id"] for one in summary["alerts"]] == [f"a{number}" for number in range(50)]
        assert (summary["delivery"], alone["event"], alone["delivery"]) == ("summary-91-0", "closed", "92-0")
        assert told == [("webhook", "91-0"), ("webhook", "92-0")]
        task.cancel()


async def test_a_receiver_that_refuses_summaries_gets_each_alert() -> None:
    """A receiver that does not know summaries gets their alerts one by one."""
    async with receiver() as found:
        found.mode = "old"
        queue = HookQueue(webhook(found.url, SECRET), "s")
        for number in range(9):
            queue.put(AlertEvent("opened", replace(ALERT, id=f"a{number}"), f"{number + 1}-0"))
        task = asyncio.create_task(queue.run())
        assert await queue.flush(30)
        assert [note["alert"]["id"] for note in found.notes] == [f"a{number}" for number in range(9)]
        task.cancel()


async def test_a_hook_that_hangs_delays_no_other_one(tmp_path: Any) -> None:
    """Each hook has its own queue."""
    async with receiver() as bad, receiver() as good:
        bad.mode = "hang"
        queues = [HookQueue(webhook(one.url, SECRET), "s") for one in (bad, good)]
        tasks = [asyncio.create_task(queue.run()) for queue in queues]
        for queue in queues:
            queue.put(AlertEvent("opened", ALERT, "7-0"))
        assert await queues[1].flush(30)
        assert not await queues[0].flush(0.01)
        assert len(good.notes) == 1
        for task in tasks:
            task.cancel()


async def test_quiet_hours_hold_messages_back() -> None:
    """In quiet hours nothing is sent. Afterwards, an alert that also closed meanwhile is dropped."""
    async with receiver() as found:
        hours = quiet_hours("00:00-23:59", "UTC")
        queue = HookQueue(webhook(found.url, SECRET), "s", hours, look=0.01)
        task = asyncio.create_task(queue.run())
        other = replace(ALERT, id="a2")
        for event in (
            AlertEvent("opened", ALERT, "1-0"),
            AlertEvent("opened", other, "2-0"),
            AlertEvent("closed", replace(ALERT, closed_ms=9), "3-0"),
        ):
            queue.put(event)
        assert not await queue.flush(0.2)
        assert found.tries == 0
        queue.quiet = None  # the night is over
        assert await queue.flush(30)
        assert [note["delivery"] for note in found.notes] == ["2-0"]
        task.cancel()


async def turn(watcher: AlertWatcher, times: int = 1) -> None:
    for _ in range(times):
        await watcher.turn()


@pytest.mark.realserver
async def test_one_of_two_watchers_writes_and_the_other_takes_over(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One watcher has the lease and tells its hook. When it ends, the other continues and does not tell it again."""
    monkeypatch.setattr("millstream.ops.alerts.status.OPENS_MS", 0)
    client.xadd("orders", {"n": "payload-secret"})
    client.xgroup_create("orders", "billing", id="0")
    async with receiver() as found:
        hooks = [webhook(found.url, SECRET)]
        told: list[bool] = []
        one = AlertWatcher(ConsoleServer(server.url), hooks, every=1)
        two = AlertWatcher(ConsoleServer(server.url), hooks, every=1, stands_by=told.append)
        stop = asyncio.Event()
        running = asyncio.create_task(one.run(stop))
        await aeventually(lambda: bool(found.notes))
        await turn(two)
        await turn(two)
        assert (client.xlen(store.KEY), told) == (1, [True])
        stop.set()
        await running
        stop = asyncio.Event()
        running = asyncio.create_task(two.run(stop))
        await aeventually(lambda: client.get("millstream:{millstream:alerts}:fence:watch") == b"2")
        assert told == [True, False]
        client.delete("orders")
        stop.set()
        await running
        (note,) = found.notes
        assert note["alert"]["affects"] == ["billing on orders: 1 not delivered"]
        assert "payload-secret" not in str(note)
        assert client.xlen(store.KEY) == 1


@pytest.mark.realserver
async def test_a_watcher_that_lost_its_lease_cannot_write(server: ServerProcess, client: redis.Redis) -> None:
    """The step that adds an entry checks the lease, so a watcher that stood still writes nothing."""
    from millstream.client.open import open_line

    line = open_line(server.url)
    held = await store.take(line, "w1", 60_000)
    assert held is not None
    assert await store.take(line, "w2", 60_000) is None
    client.delete(held.key)
    again = await store.take(line, "w2", 60_000)
    assert again is not None
    assert again.fence == held.fence + 1
    assert await store.add(line, held, words_of(AlertEvent("opened", ALERT))) is None
    assert client.xlen(store.KEY) == 0
    await line.close()


@pytest.mark.realserver
@pytest.mark.parametrize("last", [b"5-x", "\u00b2-1".encode(), b"5", b"", b"\xff", b"9" * 5000])
async def test_a_forged_record_of_a_hook_ends_no_watcher(
    server: ServerProcess, client: redis.Redis, last: bytes
) -> None:
    """Any client may have written the id of the last notification; the hook is then told of open alerts."""
    client.xadd(store.KEY, dict(zip(*[iter(words_of(AlertEvent("opened", ALERT)))] * 2, strict=True)))
    client.hset(store.SENT, "webhook", last)
    async with receiver() as told:
        watcher = AlertWatcher(ConsoleServer(server.url), [webhook(told.url, SECRET)], every=1)
        stop = asyncio.Event()
        running = asyncio.create_task(watcher.run(stop))
        await aeventually(lambda: bool(told.notes) or running.done(), what="the hook was told")
        stop.set()
        await running
        assert [note["alert"]["id"] for note in told.notes] == [ALERT.id]


@pytest.mark.realserver
async def test_large_entries_hide_no_open_alert_from_a_new_watcher(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher that starts finds an open alert behind 12 MB of other entries, and does not open it again."""
    monkeypatch.setattr("millstream.ops.alerts.status.OPENS_MS", 0)
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "billing", id="0")
    first = AlertWatcher(ConsoleServer(server.url), every=1)
    stop = asyncio.Event()
    running = asyncio.create_task(first.run(stop))
    await aeventually(lambda: client.xlen(store.KEY) == 1)
    stop.set()
    await running
    for _ in range(6):
        client.xadd(store.KEY, {"event": "noise", "says": "x" * 2_000_000})
    second = AlertWatcher(ConsoleServer(server.url), every=1)
    await turn(second, 2)
    assert [fields[b"event"] for _, fields in client.xrange(store.KEY)].count(b"opened") == 1
    stop.set()
    await second.run(stop)


@pytest.mark.realserver
async def test_the_documented_rights_suffice(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher with the rights of docs/monitoring.md keeps an alert, and stores that its hook was told."""
    monkeypatch.setattr("millstream.ops.alerts.status.OPENS_MS", 0)
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "billing", id="0")
    lines = re.findall(r"^ACL SETUSER alerts .*$", (ROOT / "docs/monitoring.md").read_text(), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        client.execute_command(*line.split())
    async with receiver() as told:
        place = server.url.replace("redis://", "redis://alerts:a-long-password@")
        watcher = AlertWatcher(ConsoleServer(place), [webhook(told.url, SECRET)], every=1)
        stop = asyncio.Event()
        running = asyncio.create_task(watcher.run(stop))
        await aeventually(lambda: client.hget(store.SENT, "webhook"), what="the hook was told")
        stop.set()
        await running
        assert [note["alert"]["code"] for note in told.notes] == ["nobody-reads"]
    assert client.xlen(store.KEY) == 1
    client.execute_command("ACL", "DELUSER", "alerts")


def fill(client: redis.Redis) -> None:
    for _ in range(20_000):
        client.xadd("orders", {"x": "y" * 1000})


@pytest.mark.realserver
async def test_a_server_that_is_full_is_an_alert_that_is_written_later(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server refuses entries, hooks are told at once. It is written when there is room."""
    monkeypatch.setattr("millstream.ops.alerts.status.OPENS_MS", 0)
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 3_000_000)
    try:
        with pytest.raises(redis.OutOfMemoryError):
            fill(client)
        async with receiver() as found:
            watcher = AlertWatcher(ConsoleServer(server.url), [webhook(found.url, SECRET)], every=1)
            stop = asyncio.Event()
            running = asyncio.create_task(watcher.run(stop))
            await aeventually(lambda: bool(found.notes))
            assert client.exists(store.KEY) == 0
            client.config_set("maxmemory", 0)
            await aeventually(lambda: client.xlen(store.KEY) > 0, what="the alert is written")
            stop.set()
            await running
            full = [note for note in found.notes if note["alert"]["code"] == "out-of-memory"]
            assert len(full) == 1
            assert full[0]["alert"]["says"].startswith("the server: its memory is full (")
            assert b"out-of-memory" in [fields[b"code"] for _, fields in client.xrange(store.KEY)]
    finally:
        client.config_set("maxmemory", 0)


async def test_a_server_that_does_not_answer_is_an_alert_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server, a hook is told of that at once, and the message has no password."""
    monkeypatch.setattr("millstream.ops.alerts.status.OPENS_MS", 0)
    async with receiver() as found:
        watcher = AlertWatcher(ConsoleServer(DOWN), [webhook(found.url, SECRET)], every=1)
        stop = asyncio.Event()
        running = asyncio.create_task(watcher.run(stop))
        await aeventually(lambda: bool(found.notes))
        stop.set()
        await running
        assert found.notes[0]["alert"]["code"] == "no-answer"
        assert "hunter2" not in str(found.notes)


@pytest.mark.realserver
def test_the_stream_of_another_program_is_refused_or_skipped(client: redis.Redis, look: Look[Any]) -> None:
    """Entries that no watcher wrote are skipped, and a key of another type is a reason."""
    client.xadd(store.KEY, {"event": "opened"})
    client.xadd(store.KEY, {b"\xff": b"\xfe"})
    assert look(read_alerts).alerts == ()
    client.delete(store.KEY)
    client.set(store.KEY, "x")
    assert "WRONGTYPE" in str(look(read_alerts).why)


@pytest.mark.realserver
def test_huge_entries_in_the_stream_are_left_out(client: redis.Redis, look: Look[Any]) -> None:
    """Reading stops after 4 MB with a sentence about it, and has the newest alerts; small entries are read whole."""
    for number in range(300):
        client.execute_command("XADD", store.KEY, "*", *words_of(AlertEvent("opened", replace(ALERT, id=f"a{number}"))))
    seen = look(read_alerts)
    assert (len(seen.alerts), seen.more, seen.note) == (300, False, "")
    for _ in range(40):
        client.xadd(store.KEY, {"event": "opened", "says": "x" * 1_000_000})
    for number in range(2):
        client.execute_command("XADD", store.KEY, "*", *words_of(AlertEvent("opened", replace(ALERT, id=f"b{number}"))))
    seen = look(read_alerts)
    assert {one.id for one in seen.alerts} == {"b0", "b1"}
    assert "are left out" in seen.note
    before = client.info("stats")["total_net_output_bytes"]
    look(read_alerts)
    assert client.info("stats")["total_net_output_bytes"] - before < 24_000_000
    for _ in range(10):
        client.xadd(store.KEY, {"event": "opened", "says": "x" * 5_000_000})
    before = client.info("stats")["total_net_output_bytes"]
    assert look(read_alerts).alerts == ()
    assert client.info("stats")["total_net_output_bytes"] - before < 6_000_000
