"""Changes of entries, dead letters and workers through the pages: previews, outcomes, refusals."""

import html
import json
import re
import time
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.client.dead_letter.letter import DeadLetter, pack, take_history, unpack
from millstream.ops.actions import form_of
from millstream.ops.every import ACTIONS
from millstream.ops.letters.reading import FIRST
from millstream.ops.watching import jobs
from millstream.web.pages import change
from millstream.worker.registry import protocol
from support.accounts import user
from support.console import Answer, ConsoleThread
from support.waiting import eventually

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'\x1b[2J\N{RIGHT-TO-LEFT OVERRIDE}"


@pytest.fixture
def stream(client: redis.Redis, changing: ConsoleThread) -> redis.Redis:
    """A stream of ten entries, with four delivered to a group."""
    for number in range(1, 11):
        client.xadd("orders", {"n": number}, id=f"{number}-0")
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", "c1", {"orders": ">"}, count=4)
    changing.forget()
    return client


def ask(console: ConsoleThread, **words: str) -> Answer:
    return console.ask(f"/change?{urlencode(words)}")


def post(console: ConsoleThread, path: str, words: dict[str, str]) -> Answer:
    return console.ask(path, method="POST", body=urlencode(words).encode(), origin=console.address)


def form(page: Answer) -> dict[str, str]:
    """Return the fields of the form that confirms a preview."""
    inside = page.text.partition('<form class="confirm"')[2]
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', inside)
    return {name: html.unescape(value) for name, value in found}


def confirm(console: ConsoleThread, **words: str) -> Answer:
    """Preview a change, and confirm it as shown."""
    page = ask(console, **words)
    assert (page.status, 'class="act' in page.text) == (200, True), page.text
    return post(console, "/change", form(page))


def letters(client: redis.Redis, count: int, first: int = 1, **changes: Any) -> None:
    """Add dead letters of entries 1-0 and on, under the same ids."""
    for number in range(first, first + count):
        values: dict[str, Any] = {
            "fields": (b"item", b"tea", b"amount", b"x"), "stream": "orders", "id": f"{number}-0", "group": "billing",
            "consumer": "c", "deliveries": 5, "reason": "error", "error": "ValueError: no", "traceback": "T",
            "published_ms": 1, "died_ms": 1001,
        }  # fmt: skip
        client.execute_command("XADD", "orders:dead", f"{number}-0", *pack(DeadLetter(**{**values, **changes})))


def enrol(client: redis.Redis, worker: str, **changes: Any) -> None:
    """Write a worker's record, as a worker does."""
    subscriber = {
        "handler": "bill", "stream": "orders", "group": "billing", "consumer": "c1", "slots": 10, "running": 3,
        "buffered": 2, "handled": 3, "failed": 1, "dead": 0, "paused": None, "jobs": [],
    }  # fmt: skip
    facts = {
        "id": worker, "host": "web", "pid": 1, "version": "0.1.0", "state": "running", "blocked": None,
        "started_ms": 1_763_721_600_000, "beat_ms": 1_763_721_605_000, "subscribers": [subscriber], "last_error": None,
    }  # fmt: skip
    client.zadd(protocol.INDEX, {worker: time.time_ns() // 1_000_000})
    client.set(protocol.worker_key(worker), json.dumps({**facts, **changes}))


def written(client: redis.Redis) -> list[str]:
    """Return the actions in the audit stream."""
    rows: Any = client.xrange("millstream:audit")
    return [fields[b"action"].decode() for _, fields in rows]


# -- streams ----------------------------------------------------------------------------------------------------------

ADDED = [
    "item=tea amount=3",
    "note='two words' note=again",
    '{"item": "tea", "user": {"id": 7}, "list": [1, "x"], "yes": true, "half": 0.5, "raw": {"base64": "/w=="}}',
]


@pytest.mark.parametrize("text", ADDED)
def test_an_entry_is_added_as_the_shell_adds_it(changing: ConsoleThread, stream: redis.Redis, text: str) -> None:
    """The page adds an entry and shows its id. The printed command line adds the same bytes."""
    page = ask(changing, do="stream add", key="orders", fields=text)
    assert stream.xlen("orders") == 10
    done = post(changing, "/change", form(page))
    ((entry, fields),) = stream.xrevrange("orders", count=1)
    assert (done.status, entry.decode() in done.text, written(stream)) == (200, True, ["stream add"])
    given = ("--json", text) if text.startswith("{") else tuple(re.findall(r"(?:[^ ']|'[^']*')+", text))
    words = ["stream", "add", "orders", *(word.replace("'", "") if given[0] != "--json" else word for word in given)]
    assert CliRunner().invoke(main, [*words, "--url", changing.settings.servers[0].url]).exit_code == 0
    again: Any = stream.execute_command("XREVRANGE", "orders", "+", "-", "COUNT", 2)
    assert again[0][1] == again[1][1] == fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [("", "fields are missing"), ("novalue", "fields are missing"), ("'open", "quot"), ("{", "fields"),
     ('{"a": null}', "null"),
     ("{}", "at least one field"), ('{"a": "\\ud800"}', "surrogate")],
)  # fmt: skip
def test_what_is_no_entry_is_not_added(changing: ConsoleThread, stream: redis.Redis, fields: str, said: str) -> None:
    """Fields that do not make an entry are refused with the reason."""
    for answer in (ask(changing, do="stream add", key="orders", fields=fields),
                   post(changing, "/change", {"do": "stream add", "key": "orders", "fields": fields})):  # fmt: skip
        assert (answer.status, said in answer.text, stream.xlen("orders")) == (400, True, 10)


def test_an_entry_of_any_bytes_is_added(changing: ConsoleThread, stream: redis.Redis) -> None:
    """An entry with any bytes in its form is added."""
    page = changing.ask("/change?do=stream+add&key=orders&fields=n%3D%FF")
    assert post(changing, "/change", form(page)).status == 200
    assert stream.xrevrange("orders", count=1)[0][1] == {b"n": b"\xff"}


def test_an_entry_makes_a_stream_only_where_none_is(changing: ConsoleThread, stream: redis.Redis) -> None:
    """The preview says if adding creates the stream. If another user creates it first, the page shows a new preview."""
    page = ask(changing, do="stream add", key="new", fields="a=1")
    assert "The stream 'new' does not exist: it is created" in html.unescape(page.text)
    stream.xadd("new", {"b": 2})
    assert (post(changing, "/change", form(page)).status, stream.xlen("new")) == (200, 1)
    stream.set("text", "x")
    assert ask(changing, do="stream add", key="text", fields="a=1").status == 404


@pytest.mark.parametrize(
    ("words", "left"), [({"maxlen": "3"}, 3), ({"minid": "4-0"}, 7), ({"before": "1970-01-01T00:00:00.006"}, 5)]
)
def test_a_stream_is_trimmed_as_it_was_shown(
    changing: ConsoleThread, stream: redis.Redis, words: dict[str, str], left: int
) -> None:
    """A trim removes the previewed entries and names the groups that need them. Entries added meanwhile stay."""
    page = ask(changing, do="stream trim", key="orders", **words)
    assert "billing" in page.text
    assert stream.xlen("orders") == 10
    assert post(changing, "/change", form(page)).status == 200
    assert (stream.xlen("orders"), written(stream)) == (left, ["stream trim"])


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_letters_behind_many_other_entries_are_put_back(changing: ConsoleThread, stream: redis.Redis) -> None:
    """Dead letters behind any number of foreign entries are found and put back."""
    for number in range(1, FIRST + 2):
        stream.xadd("orders:dead", {"n": number}, id=f"{number}-0")
    letters(stream, 1, first=FIRST + 2)
    confirm(changing, do="dead retry", key="orders:dead", all="1")
    assert (stream.xlen("orders"), stream.xlen("orders:dead")) == (11, FIRST + 1)


def test_letters_are_put_back_one_ticked_or_a_class(changing: ConsoleThread, stream: redis.Redis) -> None:
    """Dead letters are put back singly, ticked, or by error class. A letter that dies after the preview stays."""
    letters(stream, 6)
    letters(stream, 4, first=7, error="KeyError: 'x'")
    assert confirm(changing, do="dead retry", key="orders:dead", ids="1-0").status == 200
    assert confirm(changing, do="dead retry", key="orders:dead", ids="2-0 3-0,3-0").status == 200
    assert (stream.xlen("orders:dead"), stream.xlen("orders")) == (7, 13)
    page = ask(changing, do="dead retry", key="orders:dead", error="KeyError", reason="error", rate="2")
    assert "KeyError 4" in page.text
    assert "it takes about 2 s" in page.text
    letters(stream, 1, first=20, error="KeyError: late")  # died after the preview: not part of it
    assert post(changing, "/change", form(page)).status == 200
    assert [entry for entry, _ in stream.xrange("orders:dead")] == [b"4-0", b"5-0", b"6-0", b"20-0"]
    rows: Any = stream.execute_command("XREVRANGE", "orders", "+", "-", "COUNT", 1)
    fields, history = take_history([part for pair in rows[0][1].items() for part in pair])
    assert (fields[:2], history[-1]["for"]) == ([b"item", b"tea"], "billing")
    assert written(stream) == ["dead retry"] * 3


def test_a_page_of_ticked_letters_comes_as_words_of_one_name(changing: ConsoleThread, stream: redis.Redis) -> None:
    """Ticked letters arrive as repeated form fields. Each of the form's two buttons previews its own change."""
    letters(stream, 3)
    query = urlencode([("key", "orders:dead"), ("rate", ""), ("do", "dead rm"), ("ids", "1-0"), ("ids", "3-0")])
    page = changing.ask(f"/change?{query}")
    assert "Delete 2 dead letters" in page.text
    assert post(changing, "/change", form(page)).status == 200
    assert [entry for entry, _ in stream.xrange("orders:dead")] == [b"2-0"]
    assert (ask(changing, do="dead rm", key="orders:dead").status, stream.xlen("orders:dead")) == (400, 1)


def test_putting_back_is_broken_off_and_gone_on_with(
    changing: ConsoleThread, stream: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Putting back many letters has a page with progress.

    If stopped, the remaining letters stay and can be put back later.
    """
    letters(stream, 12)
    monkeypatch.setattr(change, "PATIENCE", 0.05)
    begun = confirm(changing, do="dead retry", key="orders:dead", all="1", rate="1")
    assert begun.status == 303
    path = begun.headers["location"]
    twin = path.replace("/job?", "/job.json?")
    assert changing.ask(twin).facts["running"] is True
    assert "is under way" in changing.ask("/dead?key=orders%3Adead").text
    with changing.events(path) as events:
        assert "of 12" in events.next()[1]["html"]
    job = urlsplit(path).query.removeprefix("id=")
    assert post(changing, "/job", {"id": job}).status == 303
    facts = eventually(lambda: (found := changing.ask(twin).facts).get("applied") and found)
    assert (facts["stopped"], 0 < facts["done"] < 12) == (True, True)
    assert stream.xlen("orders:dead") == 12 - facts["done"]
    assert written(stream) == ["dead retry"]
    ended = html.unescape(changing.ask(path).text)
    again = re.search(r'href="([^"]*)">Continue with the rest', ended)
    assert again is not None
    rest = changing.ask(again[1])
    assert f"Put back {12 - facts['done']} entries" in rest.text
    assert post(changing, "/change", {**form(rest), "rate": "1000", "anyway": "1"}).status in {200, 303}
    eventually(lambda: (stream.xlen("orders:dead"), stream.xlen("orders")) == (0, 22))


def test_only_so_many_changes_are_under_way(
    changing: ConsoleThread, stream: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit of running changes another is refused. A console that stops ends them between two letters."""
    letters(stream, 3)
    monkeypatch.setattr(jobs, "RUNNING", 1)
    monkeypatch.setattr(change, "PATIENCE", 0.05)
    with ConsoleThread(changing.settings.servers[0].url, allow_changes=True) as own:
        begun = confirm(own, do="dead retry", key="orders:dead", ids="1-0 2-0 3-0", rate="0.1")
        refused = confirm(own, do="dead retry", key="orders:dead", ids="3-0")
        assert (begun.status, refused.status, "already running" in refused.text) == (303, 403, True)
    assert (stream.xlen("orders:dead"), written(stream)) == (2, ["dead retry"])


def test_a_letter_is_corrected_and_put_back(changing: ConsoleThread, stream: redis.Redis) -> None:
    """Correcting a letter previews the differences. A text that is not a document stays in the form with the reason."""
    letters(stream, 1)
    page = ask(changing, do="dead edit", key="orders:dead", ids="1-0")
    assert (page.status, "&#34;amount&#34;: &#34;x&#34;" in page.text) == (200, True)
    words = {"do": "dead edit", "key": "orders:dead", "ids": "1-0"}
    wrong = post(changing, "/correction", {**words, "document": '{"item": <b>'})
    assert (wrong.status, "the edited text is invalid" in wrong.text, "{&#34;item&#34;: &lt;b&gt;" in wrong.text) == (
        400,
        True,
        True,
    )
    same = post(changing, "/correction", {**words, "document": '{"item": "tea", "amount": "x"}'})
    assert "nothing to change" in same.text
    looked = post(changing, "/correction", {**words, "document": '{"item": "tea",\r\n "amount": "7"}'})
    assert ("Differences" in looked.text, stream.xlen("orders:dead")) == (True, 1)
    done = post(changing, "/change", form(looked))
    rows: Any = stream.execute_command("XREVRANGE", "orders", "+", "-", "COUNT", 1)
    fields, history = take_history([part for pair in rows[0][1].items() for part in pair])
    assert (done.status, fields, history[-1]["edited"]) == (200, [b"item", b"tea", b"amount", b"7"], True)
    assert (stream.xlen("orders:dead"), written(stream)) == (0, ["dead edit"])
    gone = ask(changing, do="dead edit", key="orders:dead", ids="1-0")
    assert (gone.status, "there is no letter" in gone.text) == (404, True)


@pytest.mark.parametrize("extra", [{"do": "stream rm"}, {"do": "dead rm"}, {"digest": "x"}, {}])
def test_a_correction_is_previewed_alone(changing: ConsoleThread, stream: redis.Redis, extra: dict[str, str]) -> None:
    """The address of a correction only previews, whatever other fields the form has.

    Without a text it shows the editor.
    """
    letters(stream, 1)
    words = {"do": "dead edit", "key": "orders:dead", "ids": "1-0", "anyway": "1", **extra}
    looked = post(changing, "/correction", {**words, "document": '{"item": "tea", "amount": "7"}'})
    assert (looked.status, form(looked)["do"], stream.xlen("orders:dead")) == (200, "dead edit", 1)
    edited = urlencode({**words, "do": "dead edit"})
    for page in (post(changing, "/correction", words), changing.ask(f"/change?{edited}")):
        assert (page.status, "<textarea" in page.text) == (200, True)
    assert changing.ask(f"/change.json?{edited}").facts["id"] == "1-0"


@pytest.mark.parametrize("path", ["/correction", "/change"])
def test_an_entry_that_is_not_a_letter_is_refused(changing: ConsoleThread, stream: redis.Redis, path: str) -> None:
    """Correcting an entry that is not a dead letter is refused, with a link back. Its page has no editor."""
    stream.xadd("orders:dead", {"a": "b"}, id="1-0")
    words = {"do": "dead edit", "key": "orders:dead", "ids": "1-0"}
    page = post(changing, path, {**words, "document": "{}"})
    assert (page.status, "is not a dead letter" in page.text, 'href="/dead?' in page.text) == (400, True, True)
    shown = changing.ask(f"/change?{urlencode(words)}")
    assert ("Not written by a worker" in shown.text, "<textarea" in shown.text) == (True, False)


# -- workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["quiet", "drain", "stop"])
def test_a_worker_is_ordered_and_set_to_work_again(changing: ConsoleThread, stream: redis.Redis, verb: str) -> None:
    """Ordering a worker previews its running entries and streams without another reader.

    The result links to the undo.
    """
    enrol(stream, "web-1")
    page = ask(changing, do=f"worker {verb}", worker="web-1")
    assert "3 entries running" in page.text
    assert "No other worker reads" in page.text
    assert not stream.exists(protocol.CONTROL)
    done = post(changing, "/change", form(page))
    assert stream.hgetall(protocol.CONTROL) == {b"worker:web-1": verb.encode()}
    changing.forget()
    workers = changing.ask("/workers").text
    assert f"ordered to {verb}" in workers
    (row,) = re.findall(r'data-label="Order">(.*?)</td>', workers, re.DOTALL)
    further = {"quiet": ["drain", "stop"], "drain": ["stop"], "stop": []}[verb]  # a blocked worker does not drain
    assert re.findall(r'value="worker (\w+)"', row) == ["resume", *further]
    back = re.search(r'href="([^"]*)">Preview the undo', html.unescape(done.text))
    assert (back is None) == (verb == "stop")
    if back is not None:
        assert post(changing, "/change", form(changing.ask(back[1]))).status == 200
        assert not stream.exists(protocol.CONTROL)
        assert written(stream) == [f"worker {verb}", "worker resume"]


def test_changes_are_listed_with_their_undo(changing: ConsoleThread, stream: redis.Redis) -> None:
    """The page of changes has each in words with its subject and its undo, page by page; a forged one is only text."""
    enrol(stream, "web-1")
    post(changing, "/change", form(ask(changing, do="worker drain", worker="web-1")))
    changing.forget()
    page = changing.ask("/changes").text
    assert all(text in page for text in ("Drain the worker", "<code>web-1</code>", "workers and rates"))
    undo = html.unescape(re.findall(r'href="([^"]*)">Preview the undo', page)[0])
    assert post(changing, "/change", form(changing.ask(undo))).status == 200
    assert not stream.exists(protocol.CONTROL)
    for number in range(30):
        stream.xadd(
            "millstream:audit", {"action": f"<b>{number}", "group": "g", "stream": "'", "undo": "x '", "line": "'"}
        )
    changing.forget()
    first, rest = changing.ask("/changes").text, changing.ask("/changes.json").facts["changes"]
    assert (len(rest), rest[0]["action"], "&lt;b&gt;29" in first, "<b>29" in first) == (25, "<b>29", True, False)
    after = html.unescape(re.findall(r'rel="next" href="([^"]*)"', first)[0])
    assert "Drain the worker" in changing.ask(after).text
    assert changing.ask("/changes?from=x").status == 404


def test_what_somebody_else_ordered_meanwhile_stands(changing: ConsoleThread, stream: redis.Redis) -> None:
    """If another user orders a worker after the preview, the page shows a new preview.

    An order to all covers the live workers and removes orders of dead ones.
    """
    enrol(stream, "web-1")
    enrol(stream, "web-2")
    stream.hset(protocol.CONTROL, "worker:gone", "drain")
    page = ask(changing, do="worker drain", all="1")
    stream.hset(protocol.CONTROL, "worker:web-1", "stop")
    again = post(changing, "/change", form(page))
    assert ("the data changed after the preview" in again.text, stream.hget(protocol.CONTROL, "worker:web-1")) == (
        True,
        b"stop",
    )
    assert post(changing, "/change", {**form(again), "anyway": "1"}).status == 200
    assert stream.hgetall(protocol.CONTROL) == {b"worker:web-1": b"drain", b"worker:web-2": b"drain"}
    assert ask(changing, do="worker drain", worker="nobody").status == 404
    assert ask(changing, do="worker drain").status == 400


def test_a_group_is_paused_and_resumed(changing: ConsoleThread, stream: redis.Redis) -> None:
    """A group is paused with reason and user, and resumed. The preview does not depend on the time."""
    enrol(stream, "web-1")
    where = {"key": "orders", "group": "billing"}
    assert ask(changing, do="worker pause", reason=" ", **where).status == 400
    assert confirm(changing, do="worker pause", reason=MARKUP, **where).status == 200
    pause = json.loads(stream.hget(protocol.CONTROL, protocol.pause_field("orders", "billing")) or b"")
    assert (pause["reason"], pause["by"]) == (MARKUP, "a user of the console")
    changing.forget()
    for path in ("/workers", "/group?key=orders&group=billing"):
        assert "<script>alert" not in changing.ask(path).text
    assert confirm(changing, do="worker resume", **where).status == 200
    assert not stream.exists(protocol.CONTROL)
    missing = ask(changing, do="worker resume", **where)
    assert (missing.status, "is not paused" in missing.text) == (404, True)
    assert ask(changing, do="worker pause", key="orders", group="nobody", reason="r").status == 404


def test_consumers_that_were_left_behind_are_removed(changing: ConsoleThread, stream: redis.Redis) -> None:
    """Removing dead consumers spares those with entries, those of live workers, and those that wake up meanwhile."""
    for name in ("gone", "waking", "alive"):
        stream.xgroup_createconsumer("orders", "billing", name)
    enrol(stream, "web-1", subscribers=[json.loads(stream.get(key) or b"{}")["subscribers"][0] | {"consumer": "alive"}
          for key in (_one(stream),)])  # fmt: skip
    page = ask(changing, do="worker reap", key="orders", idle="0s")
    assert "Remove 2 consumers" in page.text
    stream.xreadgroup("billing", "waking", {"orders": ">"}, count=1)
    again = post(changing, "/change", form(page))
    assert "the data changed after the preview" in again.text
    assert post(changing, "/change", form(again)).status == 200
    assert {row["name"] for row in stream.xinfo_consumers("orders", "billing")} == {b"c1", b"waking", b"alive"}


def _one(client: redis.Redis) -> str:
    """Return the key of an enrolled worker."""
    enrol(client, "web-1")
    return protocol.worker_key("web-1")


# -- who may ----------------------------------------------------------------------------------------------------------


def test_what_a_user_may_not_is_greyed_out_in_the_new_places(data, client: redis.Redis) -> None:
    """Buttons for letters, workers and streams that the user may not change are disabled with the missing command."""
    client.xgroup_create("orders", "billing", mkstream=True)
    letters(client, 2)
    enrol(client, "web-1")
    with (
        user(client, "+@all", "-xdel", "-hset", "-xtrim", "~*") as name,
        ConsoleThread(data.url.replace("redis://", f"redis://{name}"), allow_changes=True) as limited,
    ):
        for path, command in (
            ("/dead?key=orders%3Adead", "XDEL"),
            ("/workers", "HSET"),
            ("/stream?key=orders", "XTRIM"),
        ):
            page = limited.ask(path).text
            assert ("disabled" in page, f"run {command} here" in page) == (True, True), path
        for words in ({"do": "dead rm", "key": "orders:dead", "all": "1"}, {"do": "worker drain", "all": "1"}):
            assert ask(limited, **words).status == 403
    with (
        user(client, "+@all", "-xadd", "~*") as name,
        ConsoleThread(data.url.replace("redis://", f"redis://{name}"), allow_changes=True) as limited,
    ):
        refused = ask(limited, do="dead retry", key="orders:dead", all="1")
        assert (refused.status, "run XADD here" in refused.text) == (403, True)
    assert client.xlen("orders:dead") == 2


def test_a_read_only_console_has_no_buttons_and_stops_nothing(console: ConsoleThread, stream: redis.Redis) -> None:
    """A read-only console previews changes without buttons and refuses every post."""
    letters(stream, 1)
    enrol(stream, "web-1")
    console.forget()
    for path in ("/dead?key=orders%3Adead", "/workers", "/stream?key=orders", "/group?key=orders&group=billing"):
        assert 'action="/change"' not in console.ask(path).text, path
    assert "textarea" not in ask(console, do="dead edit", key="orders:dead", ids="1-0").text
    for path, words in (("/change", {"do": "dead rm", "key": "orders:dead", "all": "1"}), ("/job", {"id": "x"})):
        assert post(console, path, words).status == 403
    assert stream.xlen("orders:dead") == 1


def test_another_sites_page_breaks_nothing_off(changing: ConsoleThread, stream: redis.Redis) -> None:
    """Stopping a running change needs a form of this console. A link or a foreign page cannot do it."""
    for headers in ({"origin": "http://evil.example"}, {"origin": changing.address, "sec_fetch_site": "cross-site"}):
        assert changing.ask("/job", method="POST", body=b"id=x", **headers).status == 403
    assert changing.ask("/job?id=x").status == 404


def test_hostile_bytes_are_harmless_in_every_new_place(changing: ConsoleThread, client: redis.Redis) -> None:
    """Hostile names, payloads, errors and worker ids put neither elements nor control characters on a page."""
    raw = MARKUP.encode()
    client.xgroup_create(MARKUP, MARKUP, mkstream=True)
    letters(client, 1, fields=(raw, raw), stream=MARKUP, group=MARKUP, error=MARKUP, traceback=MARKUP, consumer=MARKUP)
    enrol(client, MARKUP)
    changing.forget()
    key = quote(MARKUP, safe="")
    pages = ["/dead?key=orders%3Adead", "/workers", f"/stream?key={key}", f"/group?key={key}&group={key}"]
    pages += ["/change?do=dead+edit&key=orders%3Adead&ids=1-0", "/change?do=dead+retry&key=orders%3Adead&all=1"]
    pages += [f"/change?do=worker+drain&worker={key}", f"/change?do=stream+add&key={key}&fields={quote('a=' + MARKUP)}"]
    pages += [f"/change?do=worker+reap&key={key}&idle={key}", f"/change?do=dead+rm&key=orders%3Adead&error={key}"]
    pages += [f"/change?do=worker+pause&key={key}&group={key}&reason={key}", f"/job?id={key}"]
    for path in pages:
        text = changing.ask(path).text
        assert "<script>alert" not in text, path
        assert "<img" not in text, path
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text), path


def test_a_poison_entry_is_set_aside_alone(changing: ConsoleThread, stream: redis.Redis) -> None:
    """``pending dead`` on the group's page makes one entry a dead letter, dated with the preview."""
    assert "pending dead" in changing.ask("/group?key=orders&group=billing").text
    words = {
        "do": "pending dead",
        "key": "orders",
        "group": "billing",
        "ids": "2-0",
        "reason": "it crashes every worker",
    }
    page = ask(changing, **words)
    assert "Make dead letters of 1 entry pending in" in html.unescape(page.text)
    assert stream.exists("orders:dead") == 0
    done = post(changing, "/change", form(page))
    assert "Done" in done.text, done.text
    ((_, fields),) = stream.xrange("orders:dead")
    letter = unpack([part for pair in fields.items() for part in pair])
    assert (letter.id, letter.fields, letter.error) == ("2-0", (b"n", b"2"), "it crashes every worker")
    assert [row["message_id"] for row in stream.xpending_range("orders", "billing", "-", "+", 9)] == [
        b"1-0", b"3-0", b"4-0",
    ]  # fmt: skip


def test_a_line_of_the_shell_is_a_form_of_the_page() -> None:
    """Printed undo and remedy command lines lead to the page's preview of the same change."""
    line = ("millstream", "pending", "claim", "orders", "billing", "--consumer", "web-1", "--to", "web-2")
    words = {"do": "pending claim", "key": "orders", "group": "billing", "consumer": "web-1", "to": "web-2"}
    assert form_of(line) == words
    assert form_of((*line[:3], *line[5:], "--", "orders", "-x")) == {**words, "group": "-x"}
    assert form_of(("millstream", "pending", "ack", "s", "g", "1-0", "2-0"))["ids"] == "1-0 2-0"  # type: ignore[index] # it is an action
    assert form_of(("millstream", "worker", "resume", "s", "g")) == {"do": "worker resume", "key": "s", "group": "g"}
    assert form_of(("millstream", "worker", "resume", "w")) == {"do": "worker resume", "key": "w"}
    assert form_of(("millstream", "worker", "show", "w")) is None
    assert all(form_of(action.line.split()) for action in ACTIONS)


def test_a_rejected_form_comes_back_with_its_input(changing: ConsoleThread, stream: redis.Redis) -> None:
    """An invalid change has the form again, with the input and the error at its field."""
    page = ask(changing, do="stream add", key="orders", fields="hello")
    assert (page.status, "<textarea" in page.text or 'value="hello"' in page.text) == (400, True)
    for kept in ('name="do" value="stream add"', 'name="key" value="orders"', "To the overview"):
        assert kept in page.text
    none = ask(changing, do="dead retry", key="orders:dead", rate="5")
    assert (none.status, "Nothing is selected" in none.text, 'value="5"' in none.text) == (400, True, True)
    late = ask(changing, do="dead rm", key="orders:dead", since="tomorrowish").text
    assert '<b class="hot">since &#39;tomorrowish&#39;' in late
    assert "--" not in late.partition("<main")[2]


def test_pages_of_changes_lead_on(changing: ConsoleThread, stream: redis.Redis) -> None:
    """A result links to the added entry, or to the letters. A consumer's row offers to release its entries first."""
    added = confirm(changing, do="stream add", key="orders", fields="a=1").text
    newest = stream.xrevrange("orders", count=1)[0][0].decode()
    assert f'href="/entry?key=orders&amp;id={newest}"' in added
    dead = confirm(changing, do="pending dead", key="orders", group="billing", ids="1-0", reason="too large").text
    assert 'href="/dead?key=orders%3Adead"' in dead
    assert "<code>millstream dead retry orders:dead ID</code>" in dead
    assert 'href="/group?key=orders&amp;group=billing">billing on orders</a>' in dead
    assert stream.xrange("orders:dead")[0][1][b"_dead.error"] == b"too large"
    changing.forget()
    page = changing.ask("/group?key=orders&group=billing").text
    assert 0 < page.index('value="pending nack"') < page.index('value="pending claim"')
    assert "consumer=c1#pending" in page
    assert "Skip all that wait" in page
    stream.xgroup_setid("orders", "billing", "$", entries_read=11)
    changing.forget()
    assert "Skip all that wait" not in changing.ask("/group?key=orders&group=billing").text
    assert "stream unseal" not in changing.ask("/stream?key=orders").text
