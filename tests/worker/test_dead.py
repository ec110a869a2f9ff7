"""``millstream dead`` on both servers: listing, putting back once with history, removing, exporting."""

import asyncio
import json
import time
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream import App, Message, Reject, Retry, StreamSub
from millstream.cli.main import main
from millstream.client.dead_letter.admin import DeadLetterAdmin
from millstream.client.dead_letter.letter import HISTORY, DeadLetter, pack, returning, unpack
from millstream.client.line import Line
from millstream.worker.settlement.consumer import Held, Trailed, hold
from support.groups import all_done
from support.servers import ServerProcess
from support.waiting import aeventually


def run(server: ServerProcess, *words: str) -> Result:
    """Run ``millstream dead`` in this process."""
    command, *rest = words
    return CliRunner().invoke(main, ["dead", command, *rest, "--url", server.url])


def letter(number: int = 1, **changes: Any) -> DeadLetter:
    values: dict[str, Any] = {
        "fields": (b"n", str(number).encode(), b"n", b"\xff"),
        "stream": "orders",
        "id": f"{number}-0",
        "group": "billing",
        "consumer": "c",
        "deliveries": 5,
        "reason": "error",
        "error": "ValueError: no",
        "traceback": "Traceback ...",
        "published_ms": number,
        "died_ms": number + 1000,
    }
    return DeadLetter(**{**values, **changes})


def add_letters(client: redis.Redis, count: int, **changes: Any) -> list[str]:
    """Add dead letters as a worker writes them, with ids 1000-0, 1001-0 and so on."""
    ids = [f"{1000 + number}-0" for number in range(count)]
    for number, entry in enumerate(ids):
        client.execute_command("XADD", "orders:dead", entry, *pack(letter(number, **changes)))
    return ids


def test_an_entry_that_was_put_back_decodes_as_before_and_keeps_its_deaths() -> None:
    """An entry that was put back has its original fields.

    Its death history, at most 20 long, continues in the next letter.
    """
    first = letter()
    flat = returning(first, 5000)
    assert tuple(flat[:-2]) == first.fields
    held = hold(b"9-0", flat, 1, 0)
    assert isinstance(held, Trailed)
    assert tuple(held.fields) == first.fields
    assert [death["returned_ms"] for death in held.history] == [5000]
    second = letter(9, history=held.history)
    assert unpack(pack(second)) == second
    again = hold(b"10-0", returning(unpack(pack(second)), 6000), 1, 0)
    assert isinstance(again, Trailed)
    assert [(death["id"], death["returned_ms"]) for death in again.history] == [("1-0", 5000), ("9-0", 6000)]
    for _ in range(30):
        again = hold(b"11-0", returning(letter(history=again.history), 7000), 1, 0)
    assert len(again.history) == 20
    assert again.history[0]["id"] == "1-0"  # ``once`` knows the entry by its first id
    for value in (b"{}", b"[1]", b"not json", b"\xff"):
        foreign = hold(b"1-0", [b"a", b"b", HISTORY, value], 1, 0)
        assert type(foreign) is Held
        assert foreign.fields == [b"a", b"b", HISTORY, value]


def test_a_letter_about_a_letter_is_taken_apart_at_the_right_place() -> None:
    """The dead letter of a failed dead letter keeps the inner one as its fields, without mixing their histories."""
    inner = letter(history=({"id": "0-1"},))
    outer = letter(2, fields=tuple(pack(inner)), stream="orders:dead")
    found = unpack(pack(outer))
    assert found == outer
    assert found.history == ()


async def test_retry_gives_the_handler_what_it_got_the_first_time(server: ServerProcess, client: redis.Redis) -> None:
    """An entry put back twice has the same payload each time, and its dead letter records all deaths."""
    app, seen, mended = App(server.url), [], asyncio.Event()

    @app.subscriber(StreamSub("orders", group="billing"), retry=Retry(max_deliveries=1))
    async def bill(order: dict[str, Any], msg: Message) -> None:
        seen.append((order, dict(msg.fields)))
        if not mended.is_set():
            raise Reject("no such customer")

    async with app.running():
        await app.publish("orders", {"data": '{"item": "tea"}'})
        for deaths in (0, 1):
            stored = await aeventually(lambda: client.xrange("orders:dead"))
            shown = await asyncio.to_thread(run, server, "show", "orders", stored[0][0], "-o", "json")
            assert len(json.loads(shown.output)["history"]) == deaths
            if deaths == 1:
                mended.set()
            put = await asyncio.to_thread(run, server, "retry", "orders", stored[0][0], "-o", "json")
            assert put.exit_code == 0, put.output
            assert json.loads(put.output)["returned"] == 1
        await aeventually(lambda: len(seen) == 3)
        await aeventually(all_done(client, "orders", "billing"))
    assert seen == [({"item": "tea"}, {"data": b'{"item": "tea"}'})] * 3
    assert client.xlen("orders:dead") == 0
    last: Any = client.xrevrange("orders", count=1)
    reasons = [(death["reason"], death["error"]) for death in json.loads(last[0][1]["_dead.history"])]
    assert reasons == [("reject", "no such customer")] * 2


async def test_two_operators_put_each_letter_back_once(server: ServerProcess, client: redis.Redis) -> None:
    """If several operators put back the same dead letters at once, each is added once."""
    ids = add_letters(client, 300)
    lines = [Line(server.url) for _ in range(3)]
    writer = Line(server.url)
    yards = [DeadLetterAdmin(line, "orders:dead") for line in lines]
    busy = asyncio.create_task(_bury_more(writer))
    orders = (ids, ids, ids[::-1])
    outcomes = await asyncio.gather(*(yard.put_back(order) for yard, order in zip(yards, orders, strict=True)))
    await busy
    for line in (*lines, writer):
        await line.close()
    returned = [stored for outcome in outcomes for stored, _, _ in outcome.returned]
    assert sorted(returned) == sorted(ids)
    assert sorted(stored for outcome in outcomes for stored in outcome.gone) == sorted(ids * 2)
    assert client.xlen("orders") == 300


async def _bury_more(line: Line) -> None:
    for _ in range(60):
        await line.call("XADD", "orders:dead", "*", *pack(letter()))


def test_letters_are_chosen_by_reason_error_group_and_time(server: ServerProcess, client: redis.Redis) -> None:
    """``dead ls`` filters by reason, error, group and time, and reports if more letters exist."""
    add_letters(client, 4)
    for number, changes in enumerate(({"reason": "overdue"}, {"group": "audit"}, {"error": "KeyError: 'Tea'"})):
        client.execute_command("XADD", "orders:dead", f"{2000 + number}-0", *pack(letter(9, **changes)))
    client.xadd("orders:dead", {"not": "a letter"}, id="3000-0")
    client.xadd("other:dead", {"x": 1}, id="5-0")

    def ids(*words: str) -> list[str]:
        rows = json.loads(run(server, "ls", "orders", "-o", "json", *words).stdout)
        return [row["id"].removesuffix("-0") for row in rows]

    assert ids() == ["1000", "1001", "1002", "1003", "2000", "2001", "2002", "3000"]
    assert ids("--reason", "overdue") == ["2000"]
    assert ids("--group", "audit") == ["2001"]
    assert ids("--error", "tea") == ["2002"]
    assert ids("--since", "1003", "--until", "2001") == ["1003", "2000"]
    assert ids("--until", "2001", "--reason", "error") == ["1000", "1001", "1002", "1003"]
    limited = run(server, "ls", "orders", "--limit", "2")
    assert limited.stdout.splitlines()[0].split()[:3] == ["ID", "DIED", "GROUP"]
    assert "There are more" in limited.stderr
    streams = json.loads(run(server, "ls", "-o", "json").stdout)
    assert [(row["key"], row["letters"]) for row in streams] == [("orders:dead", 8), ("other:dead", 1)]
    assert run(server, "ls", "orders", "--since", "yesterday").exit_code == 2


def test_many_are_put_back_only_on_purpose(server: ServerProcess, client: redis.Redis) -> None:
    """``dead retry`` of many letters needs IDs, options or --all, and --yes without a terminal.

    It reports missing letters.
    """
    ids = add_letters(client, 7)
    assert run(server, "retry", "orders").exit_code == 2
    asked = run(server, "retry", "orders", "--reason", "error")
    assert asked.exit_code == 2
    assert "--yes" in asked.stderr
    assert client.xlen("orders:dead") == 7
    done = run(server, "retry", "orders", "--since", "1003", "--yes", "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)["returned"]) == (0, 4)
    assert client.xlen("orders") == 4
    gone = run(server, "retry", "orders", ids[0], ids[6], "-o", "json")
    assert gone.exit_code == 1
    facts = json.loads(gone.stdout)
    assert (facts["returned"], facts["gone"]) == (1, 1)
    client.set("text", "x")
    assert "holds no stream" in run(server, "ls", "--key", "text").stderr


def test_rm_asks_and_export_keeps_everything(
    server: ServerProcess, client: redis.Redis, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``dead rm`` deletes only after a confirmation. ``dead export`` keeps field order, repeated names and bytes."""
    add_letters(client, 3, history=({"id": "0-1", "reason": "nack"},))
    out = tmp_path / "dead.jsonl"
    assert run(server, "export", "orders", "--to", str(out)).exit_code == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["id"] for line in lines] == ["1000-0", "1001-0", "1002-0"]
    assert lines[1]["fields"] == [["n", "1"], ["n", {"base64": "/w=="}]]
    assert lines[1]["traceback"] == "Traceback ..."
    assert lines[1]["history"] == [{"id": "0-1", "reason": "nack"}]
    assert run(server, "export", "orders", "--to", str(out)).exit_code == 1  # never over an existing file
    assert len(run(server, "export", "orders").stdout.splitlines()) == 3

    refused = run(server, "rm", "orders", "--all")
    assert refused.exit_code == 2
    assert client.xlen("orders:dead") == 3
    assert run(server, "rm", "orders", "1001-0", "--yes").exit_code == 0
    assert run(server, "rm", "orders", "1001-0", "--yes").exit_code == 1
    assert run(server, "rm", "orders", "--all", "--yes").exit_code == 0
    assert client.xlen("orders:dead") == 0
    assert client.xlen("orders") == 0


def test_a_letter_that_cannot_be_put_back_stays(server: ServerProcess, client: redis.Redis) -> None:
    """A dead letter that cannot be put back stays, such as one for a key of another type. The exit code is 1."""
    client.set("text", "x")
    client.xadd("full", {"x": 1}, id="18446744073709551615-18446744073709551615")
    client.execute_command("XADD", "orders:dead", "1-0", *pack(letter(1, stream="text", fields=(b"a", b"b"))))
    client.execute_command("XADD", "orders:dead", "2-0", *pack(letter(2, stream="full", fields=(b"a", b"b"))))
    client.xadd("orders:dead", {"not": "a letter"}, id="3-0")
    client.execute_command("XADD", "orders:dead", "4-0", *pack(letter(4)))
    put = run(server, "retry", "orders", "--all", "--yes", "-o", "json")
    assert put.exit_code == 1
    report = json.loads(put.stdout)
    assert (report["returned"], report["refused"]) == (1, 3)
    rows: Any = client.xrange("orders:dead")
    assert [fields.get("_dead.id") for _, fields in rows] == ["1-0", "2-0", None]
    assert client.xlen("orders") == 1


def test_a_letter_is_put_back_once_however_often_it_is_named(server: ServerProcess, client: redis.Redis) -> None:
    """A dead letter named several times, in different spellings of its id, is put back once."""
    add_letters(client, 1)
    put = run(server, "retry", "orders", "1000", "1000-0", "01000-0", "-o", "json")
    assert (put.exit_code, json.loads(put.stdout)["returned"], client.xlen("orders")) == (0, 1, 1)


def test_letters_up_to_the_highest_id_are_found(server: ServerProcess, client: redis.Redis) -> None:
    """Dead letters are listed up to the highest possible id."""
    add_letters(client, 199)
    client.execute_command("XADD", "orders:dead", f"{2**64 - 1}-{2**64 - 1}", *pack(letter()))
    found = run(server, "ls", "orders", "--limit", "1000", "-o", "json")
    assert (found.exit_code, len(json.loads(found.stdout))) == (0, 200)


async def test_no_entry_is_acked_into_a_key_that_is_no_stream(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """If the dead-letter key has another type, the entry stays pending until the key is free.

    Then its letter is written.
    """
    client.set("orders:dead", "in the way")
    app = App(server.url)

    @app.subscriber(StreamSub("orders", group="g"))
    async def work(x: int) -> None:
        raise Reject("no")

    async with app.running():
        await app.publish("orders", {"x": 1})
        await aeventually(lambda: "cannot write to the dead-letter stream" in caplog.text)
        assert client.xpending("orders", "g")["pending"] == 1
        client.delete("orders:dead")
        await aeventually(lambda: client.xlen("orders:dead") == 1)
        await aeventually(all_done(client, "orders", "g"))


async def test_putting_back_keeps_to_its_rate(server: ServerProcess, client: redis.Redis) -> None:
    """Putting back keeps to the given rate, and reports progress at each step."""
    ids = add_letters(client, 9)
    line, reported = Line(server.url), []
    began = time.monotonic()
    await DeadLetterAdmin(line, "orders:dead").put_back(ids, rate=20, progress=reported.append)
    assert time.monotonic() - began >= 0.25
    assert reported == [5, 9]
    await line.close()


@pytest.mark.parametrize("how", ["each", "batch", "manual", "no_ack"])
async def test_only_the_group_that_gave_up_gets_it_again(server: ServerProcess, client: redis.Redis, how: str) -> None:
    """An entry put back runs only in the group that gave it up. With --all-groups every group runs it."""
    app, runs, mended = App(server.url), [], asyncio.Event()

    @app.subscriber(StreamSub("orders", group="billing"), retry=Retry(max_deliveries=1))
    async def bill(order: dict[str, Any]) -> None:
        runs.append("billing")
        if not mended.is_set():
            raise Reject("no such customer")

    if how == "batch":

        @app.subscriber(StreamSub("orders", group="audit"), batch=True, max_records=10)
        async def audit_all(orders: list[dict[str, Any]]) -> None:
            runs.extend(["audit"] * len(orders))
    else:

        @app.subscriber(
            StreamSub("orders", group="audit", no_ack=how == "no_ack"), ack="manual" if how == "manual" else "auto"
        )
        async def audit(order: dict[str, Any], msg: Message) -> None:
            runs.append("audit")
            await msg.ack()

    def settled(count: int) -> bool:
        groups: Any = client.xinfo_groups("orders")
        last: Any = client.xinfo_stream("orders")
        read = all(group["last-delivered-id"] == last["last-generated-id"] for group in groups)
        return client.xlen("orders") == count and read and not any(group["pending"] for group in groups)

    async with app.running():
        await app.publish("orders", {"data": '{"item": "tea"}'})
        for options, entries in (((), 2), (("--all-groups",), 3)):
            stored = await aeventually(lambda: client.xrange("orders:dead"))
            await aeventually(lambda: "audit" in runs)
            runs.clear()
            put = await asyncio.to_thread(run, server, "retry", "orders", stored[0][0], "-o", "json", *options)
            assert json.loads(put.output)["groups"] == ("all" if options else "failed")
            if options:
                mended.set()
                await aeventually(lambda: sorted(runs) == ["audit", "billing"])
            await aeventually(lambda entries=entries: settled(entries))
            if not options:
                await aeventually(lambda: client.xlen("orders:dead"))
                assert runs == ["billing"]
                runs.append("audit")
    assert sorted(runs) == ["audit", "billing"]


async def test_what_another_group_got_back_is_passed_over_after_a_crash(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A group skips an entry put back for another group, also if it was claimed after a crash."""
    add_letters(client, 1, fields=(b"n", b"1"))
    client.xgroup_create("orders", "audit", 0, mkstream=True)
    client.xgroup_create("orders", "billing", 0)
    put = await asyncio.to_thread(run, server, "retry", "orders", "--all", "--yes")
    assert put.exit_code == 0
    assert "the group that gave up" in put.stdout
    for _ in range(3):
        client.xreadgroup("audit", "died", {"orders": ">"})
        client.xclaim("orders", "audit", "died", 0, [client.xrange("orders")[0][0]])
    app, runs = App(server.url), []

    @app.subscriber(StreamSub("orders", group="audit", min_idle_time=1))
    async def audit(msg: Message) -> None:
        runs.append(msg.id)

    async with app.running():
        await aeventually(all_done(client, "orders", "audit"))
    assert runs == []


def test_a_group_that_is_not_there_is_said(server: ServerProcess, client: redis.Redis) -> None:
    """Putting back for a missing group is refused with that reason."""
    add_letters(client, 1)
    put = run(server, "retry", "orders", "--all", "--yes")
    assert put.exit_code == 0
    assert "orders has no group 'billing' at present" in put.stderr


def test_the_question_says_for_whom(server: ServerProcess, client: redis.Redis) -> None:
    """The confirmation names the number, source, target stream and group, all escaped."""
    add_letters(client, 2)
    assert "Put back 2 entries of orders:dead on orders, each for the group that gave up on it only (billing)?" in (
        run(server, "retry", "orders", "--all").stderr
    )
    assert "each for every group there?" in run(server, "retry", "orders", "--all", "--all-groups").stderr


async def test_what_was_put_back_for_a_group_is_for_all_in_another_stream(
    server: ServerProcess, client: redis.Redis
) -> None:
    """An entry put back for one group and then copied to another stream runs in that stream's groups."""
    add_letters(client, 1, fields=(b"n", b"1"))
    put = await asyncio.to_thread(run, server, "retry", "orders", "--all", "--yes")
    assert put.exit_code == 0, put.output
    ((_, fields),) = client.xrange("orders")
    client.xadd("orders-again", fields)
    app, runs = App(server.url), []

    @app.subscriber(StreamSub("orders-again", group="audit"))
    async def audit(n: int) -> None:
        runs.append(n)

    async with app.running():
        await aeventually(lambda: runs == [1])


def test_a_letter_of_a_group_that_is_gone_stays(server: ServerProcess, client: redis.Redis) -> None:
    """A dead letter of a group that no longer exists is refused and stays. With --all-groups it is put back."""
    add_letters(client, 1, fields=(b"n", b"1"))
    client.xgroup_create("orders", "invoices", 0, mkstream=True)
    put = run(server, "retry", "orders", "--all", "--yes", "-o", "json")
    assert put.exit_code == 1
    ((_, fate, _, why),) = [tuple(row.values()) for row in json.loads(put.stdout)["letters"]]
    assert (fate, client.xlen("orders"), client.xlen("orders:dead")) == ("refused", 0, 1)
    assert "has no group 'billing' any more" in why
    assert run(server, "retry", "orders", "--all", "--yes", "--all-groups").exit_code == 0
    assert (client.xlen("orders"), client.xlen("orders:dead")) == (1, 0)
