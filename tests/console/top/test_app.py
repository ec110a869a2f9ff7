"""``millstream top`` by its keys and its screen, over a real server: each view, a change, a server that goes."""

import asyncio
import re
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.server.thread import ServerThread
from support.ports import free_port
from support.terminal import LARGE, SMALL, terminal
from support.waiting import aeventually

pytestmark = pytest.mark.thorough

HOSTILE = b"[bold red]x[/][@click=app.quit]q[/]\x1b[2J\x1b]0;t\x07\n\xe2\x80\xae\xff" + "größe".encode()
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e]")

VIEWS = {
    "overview": ("NEEDS A PERSON", "STREAMS AND GROUPS", "$ millstream group ls"),
    "stream orders": (
        "entries 10",
        "last id 10-0",
        "NEWEST ENTRIES",
        "amount=10.50",
        "$ millstream stream show orders",
    ),
    "group orders billing": ("lag 4", "pending 6", "unowned 1", "CONSUMERS", "$ millstream group show orders billing"),
    "entry orders 2-0": ("IN EACH GROUP", "billing", "pending", "2.50", "$ millstream stream get orders 2-0"),
    "dead": ("letters 1", "orders:dead", "$ millstream dead ls"),
    "letters orders:dead": ("WHAT THEY DIED OF", "ValueError", "$ millstream dead ls orders:dead"),
    "letter orders:dead 5-0": ("reason error", "Trace:", "FIELDS", "$ millstream dead show orders:dead 5-0"),
    "workers": ("alive 0", "No workers.", "$ millstream worker ls"),
    "server": ("millstream", "memory", "WHAT COMMANDS COST", "$ millstream server show"),
    "queries": ("running 0", "No Spark queries.", "$ millstream spark ls"),
    "bill": ("FOUND", "billing", "$ millstream stream find"),
}


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "200x50"])
async def test_each_view_shows_its_facts_and_its_command_line(
    data: ServerThread, orders: redis.Redis, size: tuple[int, int]
) -> None:
    """Reached by its name; no line is wider than the terminal, and the keys are at the foot."""
    async with terminal(data.url, size=size) as screen:
        await screen.shows("live", *VIEWS["overview"])
        for typed, words in VIEWS.items():
            text = await screen.open(typed, *words)
            assert max(map(len, text.splitlines())) <= size[0]
            assert "quit" in text.splitlines()[-1]


async def test_enter_leads_on_and_escape_back(data: ServerThread, orders: redis.Redis) -> None:
    """From the overview to the group, to the entry, and the same way back; a number leads to a view at once."""
    async with terminal(data.url, size=LARGE) as screen:
        await screen.shows("STREAMS AND GROUPS")
        await screen.press("enter")
        await screen.shows("overview > billing", "PENDING ENTRIES")
        await screen.press("end", "enter")
        await screen.shows("overview > billing > 6-0", "IN EACH GROUP")
        await screen.press("escape")
        await screen.shows("PENDING ENTRIES")
        await screen.press("escape")
        await screen.shows("STREAMS AND GROUPS")
        await screen.press("2")
        await screen.shows("dead letters", "orders:dead")


async def test_rows_are_filtered_and_sorted(data: ServerThread, orders: redis.Redis) -> None:
    """While it is typed; Escape takes the filter away. The next key sorts by the next figure."""
    for number in range(3):
        orders.xadd(f"quiet-{number}", {"n": number})
    async with terminal(data.url, size=LARGE) as screen:
        await screen.shows("quiet-0", "orders", "sorted by worst")
        await screen.press("slash", *"quiet-2")
        text = await screen.shows("only what has 'quiet-2' in it", "(1 of ")
        assert "quiet-1" not in text
        await screen.press("enter", "escape")
        await screen.shows("quiet-0", "orders")
        await screen.press("s")
        text = await screen.shows("sorted by name")
        assert text.index("quiet-0") < text.index("quiet-1") < text.index("quiet-2")


async def test_it_is_live_and_can_be_held(data: ServerThread, orders: redis.Redis) -> None:
    """What is added shows by itself, not while it is paused, and at once when it is read."""
    async with terminal(data.url, "stream orders", size=LARGE) as screen:
        await screen.shows("amount=10.50")
        orders.xadd("orders", {"amount": "eleven"})
        await screen.shows("amount=eleven")
        await screen.press("p")
        await screen.shows("paused")
        orders.xadd("orders", {"amount": "twelve"})
        await screen.press("r")
        assert "paused" in await screen.shows("amount=twelve")


async def test_the_mark_stays_where_it_was(data: ServerThread, orders: redis.Redis) -> None:
    """A reading that brings new rows above moves no choice: what Enter opens is what was marked."""
    async with terminal(data.url, "stream orders", size=LARGE) as screen:
        await screen.shows("amount=10.50")
        await screen.press("end")
        orders.xadd("orders", {"amount": "eleven"})
        await screen.shows("amount=eleven")
        await screen.press("enter")
        await screen.shows("1-0", "1.50", "IN EACH GROUP")


async def test_a_change_is_previewed_made_written_down_and_undone(data: ServerThread, orders: redis.Redis) -> None:
    """The words of the shell: question, before and after, the line; then what became of it, by ``top``."""
    async with terminal(data.url, "group orders billing", size=LARGE, changes=True) as screen:
        await screen.shows("PENDING ENTRIES")
        await screen.press("end", "a")
        await screen.shows("Change something: stream orders, group billing, entry 6-0", "pending claim")
        await screen.press("enter")
        await screen.shows("to (needed)")
        await screen.press("enter")
        await screen.shows("It needs to.")
        await screen.type("web-9")
        await screen.shows(
            "Move 1 entry pending in 'billing' of 'orders' to 'web-9'?", "BEFORE", "held by web-2", "XCLAIM"
        )
        assert orders.xpending_range("orders", "billing", "6-0", "6-0", 1)[0]["consumer"] == b"web-2"
        await screen.press("y")
        await screen.shows("Done", "1 step was taken.", "millstream audit undo")
        assert orders.xpending_range("orders", "billing", "6-0", "6-0", 1)[0]["consumer"] == b"web-9"
        ((_, written),) = orders.xrange("millstream:audit")
        assert (written[b"action"], written[b"via"], written[b"who"]) == (b"pending claim", b"top", b"ana@host")
        await screen.press("u")
        await screen.shows("Put 1 entry back")
        await screen.press("y")
        await screen.shows("Done")
        assert orders.xpending_range("orders", "billing", "6-0", "6-0", 1)[0]["consumer"] == b"web-2"
        await screen.press("escape")
        await screen.shows("live")


@pytest.mark.parametrize("key", ["x", "ctrl+c"])
async def test_a_change_is_broken_off_between_two_parts(
    data: ServerThread, orders: redis.Redis, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    """By x, or by leaving amid it: what was done is whole and written down, and whoever leaves is told where."""
    (_, letter) = orders.xrange("orders:dead")[0]
    for number in range(6, 10):
        orders.xadd("orders:dead", letter, id=f"{number}-0")
    async with terminal(data.url, "letters orders:dead", size=LARGE, changes=True) as screen:
        await screen.shows("THE NEWEST LETTERS")
        await screen.press("end", "a")
        await screen.shows("dead retry")
        await screen.press("enter")
        await screen.shows("at most a second")
        await screen.press(*["backspace"] * 4, *"5-0 6-0 7-0 8-0 9-0", "tab", "tab", "tab")
        await screen.type("1")
        await screen.shows("y does it", "--rate 1")
        await screen.press("y")
        await screen.shows("of 5 entries", "break it off")
        await aeventually(lambda: orders.xlen("orders") > 10, what="a letter is put back")
        await screen.press(key)
        if key == "x":
            await screen.shows("Not all of it was done", "In the audit stream as")
    put_back = orders.xlen("orders") - 10
    assert 0 < put_back < 5
    assert orders.xlen("orders:dead") == 5 - put_back
    ((_, written),) = orders.xrange("millstream:audit")
    assert (written[b"action"], int(written[b"done"])) == (b"dead retry", put_back)
    said = "A change was under way and was broken off: `millstream audit ls` shows"
    assert (said in capsys.readouterr().err) == (key == "ctrl+c")


async def test_what_moved_since_its_preview_is_not_changed(data: ServerThread, orders: redis.Redis) -> None:
    """It shows what would happen now instead."""
    async with terminal(data.url, "group orders billing", size=LARGE, changes=True) as screen:
        await screen.shows("PENDING ENTRIES")
        await screen.press("a")
        await screen.shows("group rm")
        await screen.press("down", "down", "down", "down", "down", "enter")
        await screen.shows("Remove the group 'billing'")
        orders.xreadgroup("billing", "web-3", {"orders": ">"}, count=1)
        await screen.press("y")
        await screen.shows("has moved meanwhile")
        assert len(orders.xinfo_groups("orders")) == 1


async def test_many_findings_leave_room_for_the_streams(data: ServerThread, orders: redis.Redis) -> None:
    """A row for each kind in a quarter of the screen at most; all of them, with what helps, are a key away."""
    for number in range(15):
        orders.xgroup_create("orders", f"g{number}", id="0")
    orders.xclaim("orders", "billing", "web-1", 0, ["1-0"], retrycount=9)
    async with terminal(data.url) as screen:
        text = await screen.shows("NEEDS A PERSON", "STREAMS AND GROUPS", "15 times: entries wait")
        lines = text.splitlines()
        first, last = (next(n for n, line in enumerate(lines) if title in line) for title in ("NEEDS", "STREAMS AND"))
        assert (last - first <= 7, "orders" in lines[last + 2]) == (True, True), text  # a blank line is between
        at = next(line for line in lines[first:last] if "what helps: Enter here" in line)
        assert at == lines[last - 2]
        await screen.open("findings", "overview > findings", "lag 10; lag at least 10")
    async with terminal(data.url, "findings", size=LARGE) as screen:
        await screen.shows("g9 on orders", "$ millstream run MODULE:APP")


async def test_what_is_ticked_is_chosen(data: ServerThread, orders: redis.Redis) -> None:
    """As on the page: all pending entries that are gone from the stream, in the shell's words."""
    orders.xtrim("orders", minid="3-0", approximate=False)
    async with terminal(data.url, "group orders billing", size=LARGE, changes=True) as screen:
        await screen.shows("what is the matter".upper(), "pending ack orders billing --gone")
        await screen.press("home", "a")
        await screen.shows("pending ack")
        await screen.press("down", "enter")
        await screen.shows("only what is trimmed or deleted from the stream")
        await screen.press("tab", "tab", "space", "enter")
        await screen.shows("Acknowledge 2 entries pending", "$ millstream pending ack orders billing --gone")


async def test_a_wrong_word_is_said_so(data: ServerThread, orders: redis.Redis) -> None:
    """The reason in place of a preview; there is nothing to agree to."""
    async with terminal(data.url, "group orders billing", size=LARGE, changes=True) as screen:
        await screen.shows("PENDING ENTRIES")
        await screen.press("a")
        await screen.shows("group rewind")
        await screen.press("down", "down", "down", "enter")
        await screen.shows("to (needed)")
        await screen.type("nowhere")
        assert "yes, do it" not in await screen.shows("It did not work", "no place")


@pytest.mark.parametrize("changes", [False, True])
async def test_a_change_that_is_not_open_says_why(data: ServerThread, orders: redis.Redis, changes: bool) -> None:
    """Read-only, or the server's own words; Enter opens none of them."""
    may = ["+info", "+acl|whoami", "+acl|dryrun", "+xinfo"]
    orders.acl_setuser(
        "looker", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@read", "+@connection"], commands=may
    )
    url = data.url.replace("redis://", "redis://looker:pw@") if changes else data.url
    why = (
        "does not let the user 'looker' run XGROUP SETID"
        if changes
        else "top is read-only: start it with --allow-changes"
    )
    async with terminal(url, "group orders billing", size=(200, 80), changes=changes) as screen:
        await screen.shows("PENDING ENTRIES")
        await screen.press("a")
        await screen.shows("group rewind", why)
        await screen.press("enter")
        await screen.press("escape")
        await screen.shows("live")
    orders.acl_deluser("looker")


async def test_a_dead_letter_is_put_back(data: ServerThread, orders: redis.Redis) -> None:
    """From its row: the form knows which; the entry is on its stream again, and the letter is gone."""
    async with terminal(data.url, "letters orders:dead", size=LARGE, changes=True) as screen:
        await screen.shows("THE NEWEST LETTERS")
        await screen.press("end", "a")
        await screen.shows("dead retry", "entry 5-0")
        await screen.press("enter")
        await screen.shows("at most a second")
        await screen.press("enter")
        await screen.shows("y does it", "millstream dead retry orders:dead 5-0")
        await screen.press("y")
        await screen.shows("Done")
        assert (orders.xlen("orders"), orders.xlen("orders:dead")) == (11, 0)


async def test_a_server_that_goes_is_shown_with_the_age_of_what_was_read(data: ServerThread) -> None:
    """Why there is no answer and how old the rows are; when it is back, it goes on by itself."""
    port = free_port()
    async with terminal(f"redis://127.0.0.1:{port}/0", size=LARGE) as screen:
        await screen.shows("NO ANSWER", "does not answer", "start it")
        with ServerThread(port=port) as server, redis.Redis.from_url(server.url) as client:
            client.xadd("orders", {"n": 1})
            await screen.shows("live", "orders", "1 entry")
        await screen.shows("NO ANSWER", "orders", "s ago")
        with ServerThread(port=port) as server, redis.Redis.from_url(server.url) as client:
            client.xadd("payments", {"n": 1})
            await screen.shows("live", "payments")


async def test_names_and_values_of_any_bytes_are_shown_and_do_nothing(data: ServerThread, client: redis.Redis) -> None:
    """As key, group, consumer, field and value at once, in each view that has them: no markup, no control character."""
    client.xadd(HOSTILE, {HOSTILE: HOSTILE}, id="1-1")
    client.xadd(HOSTILE, {b"data": b'{"a": "\\u001b[2J[bold]"}', b"large": b"\x1b[x" * 100_000}, id="2-1")
    client.xgroup_create(HOSTILE, HOSTILE, id="0")
    client.execute_command("XREADGROUP", "GROUP", HOSTILE, HOSTILE, "STREAMS", HOSTILE, ">")
    client.execute_command("XADD", b"x:dead", "1-1", HOSTILE, HOSTILE)
    async with terminal(data.url, size=LARGE, changes=True) as screen:
        for keys, word in [
            ((), "STREAMS AND GROUPS"),
            (("end", "up", "enter"), "ENTRIES"),
            (("end", "enter"), "IN EACH GROUP"),
            (("home", "enter"), "PENDING ENTRIES"),
            (("end", "a"), "Change something"),
        ]:
            await screen.press(*keys)
            text = await screen.shows(word, "[bold red]x[/][@click=app.quit]q[/]\\x1b[2J")
            assert CONTROL.findall(text) == []
        await screen.press("enter")
        await screen.shows("to (needed)")
        await screen.type("web-1")
        text = await screen.shows("Move 1 entry", "$'[bold red]")
        assert CONTROL.findall(text) == []
        await screen.press("y")
        await screen.shows("Done")
        assert client.xpending_range(HOSTILE, HOSTILE, "2-1", "2-1", 1)[0]["consumer"] == b"web-1"


async def test_a_lost_link_needs_a_person() -> None:
    """A replica whose primary is away says so on the first view, and leads to the view of the server."""
    with ServerThread() as server, redis.Redis.from_url(server.url) as client:
        client.replicaof("127.0.0.1", str(free_port()))
        async with terminal(server.url, size=LARGE) as screen:
            await screen.shows("NEEDS A PERSON", "its link to its primary", "$ millstream doctor redis://")
            await screen.press("enter")
            await screen.shows("memory", "WHAT COMMANDS COST")


async def test_the_keys_are_listed(data: ServerThread, client: redis.Redis) -> None:
    """With every view that can be typed; a view that is typed wrongly is said so."""
    async with terminal(data.url, size=LARGE) as screen:
        await screen.shows("There are no streams.", "Nothing needs a person.")
        await screen.press("question_mark")
        await screen.shows("go by a name", "group STREAM GROUP", "letters STREAM")
        await screen.press("escape")
        await screen.open("group orders", "it is `group STREAM GROUP`")
        await screen.open("stream nope", "there is no stream 'nope'")


async def test_it_asks_nothing_once_it_has_ended(data: ServerThread, orders: redis.Redis) -> None:
    """The connection is closed with it."""
    async with terminal(data.url) as screen:
        await screen.shows("live")
        assert len(orders.client_list()) == 2
        await screen.press("q")
    await aeventually(lambda: len(orders.client_list()) == 1, what="its connection is closed")


async def test_a_report_is_not_said_to_be_changed_by_an_option(
    data: ServerThread, orders: redis.Redis, tmp_path: Path
) -> None:
    """--allow-changes is refused of it, so it is not what is asked for."""
    path = tmp_path / "r.json"
    done = await asyncio.to_thread(CliRunner().invoke, main, ["report", "-o", str(path), "--url", data.url])
    assert done.exit_code == 0, done.output
    async with terminal(f"report:{path}", "group orders billing", size=(200, 80)) as screen:
        await screen.shows("PENDING ENTRIES")
        await screen.press("a")
        assert "--allow-changes" not in await screen.shows("group rewind", "not open: a report is only read")


async def test_a_reading_that_comes_back_while_the_view_ends_is_no_error(
    data: ServerThread, orders: redis.Redis
) -> None:
    """Its rows and lines are taken apart before the reading is broken off."""
    async with terminal(data.url) as screen:
        await screen.shows("STREAMS AND GROUPS")
        await screen.press("p")
        await screen.shows("paused")
        await screen.app.screen.query("*").remove()
        screen.app.action_sort()  # reads once
        await screen.app.workers.wait_for_complete()
