"""Each page as HTML and JSON: foreign content in a stream is shown and has no effect."""

import html.parser
import re
from urllib.parse import quote

import msgpack
import pytest
import redis

from millstream.cli.console.shown import GROUPS
from millstream.ops.payloads.decode import FORMS
from support.console import ConsoleThread

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{7*7}}{% raw %}</main>"
ESCAPES = "\x1b[2J\x1b]0;title\x07\N{RIGHT-TO-LEFT OVERRIDE}abc\N{ZERO WIDTH SPACE}\x00\r\n\x9b31m"
BYTES = b"\xff\xfe\x80 \xc3("
NAMES = [MARKUP.encode(), ESCAPES.encode(), BYTES, b"", b"a/b?c#d&e=f", b"x" * 3000, "größe \N{SNOWMAN}".encode()]


class Tags(html.parser.HTMLParser):
    """A page parsed like a browser does: its elements, and those that would run or load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.risky: list[str] = []
        self.hrefs: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for name, value in attrs:
            if name.startswith("on") or name == "style" or (name in {"href", "src"} and ":" in (value or "")):
                self.risky.append(f"{tag} {name}={value}")
            if name in {"href", "data-href"}:
                self.hrefs.append(value or "")


def q(name: bytes) -> str:
    return quote(name, safe="")


def is_harmless(text: str) -> bool:
    """Check that a page has only its own elements, runs nothing foreign, and has no control characters."""
    found = Tags(text)
    assert found.risky == []
    assert found.names.count("script") == 2  # console.js and charts.js
    assert "img" not in found.names
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202e]", text)
    assert "49" not in re.findall(r"alert\(2\)&gt;.{0,20}49", text)
    return True


@pytest.mark.parametrize("name", NAMES, ids=["markup", "escapes", "bytes", "empty", "signs", "long", "letters"])
def test_names_of_any_bytes_are_shown_and_lead_to_their_pages(
    console: ConsoleThread, client: redis.Redis, name: bytes
) -> None:
    """Keys, groups and consumers with any bytes are shown escaped, and every link of every page works."""
    client.xadd(name, {name or b"n": name}, id="1-1")
    client.xadd(name, {b"n": 2}, id="2-1")
    client.xgroup_create(name, name, id="0")
    client.execute_command("XREADGROUP", "GROUP", name, name or b"c", "COUNT", 1, "STREAMS", name, ">")
    pages = ["/", f"/stream?key={q(name)}", f"/group?key={q(name)}&group={q(name)}", f"/entry?key={q(name)}&id=1-1"]
    pages += [f"/search?q={q(name[:20])}", "/dead", "/workers", "/server"]
    leads: set[str] = set()
    for path in pages:
        answer = console.ask(path)
        assert (path, answer.status) == (path, 200)
        assert is_harmless(answer.text)
        leads |= set(Tags(answer.text).hrefs)
    assert f"/stream?key={q(name)}" in leads
    assert f"/group?key={q(name)}&group={q(name)}" in leads
    for path in sorted(leads):
        if path.startswith("/") and not path.startswith("/static"):
            assert (path, console.ask(path).status) == (path, 200)


VALUES = [
    MARKUP.encode(),
    ESCAPES.encode(),
    BYTES,
    b'{"a": "</script><script>alert(1)</script>", "deep": ' + b"[" * 500 + b"]" * 500 + b"}",
    msgpack.packb({"a": [1, b"\xff", "<b>"]}),
    b"<b>" * 350_000,
    b"\x00" * 1_000_000,
    b'{"n": ' + b"9" * 100_000 + b"}",
]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_values_of_any_bytes_are_shown(console: ConsoleThread, client: redis.Redis, number: int) -> None:
    """Values with any bytes are shown escaped in lists, entries and all formats. Large ones are cut."""
    key, value = f"values-{number}", VALUES[number]
    client.xadd(key, {b"v": value, value[:40]: b"1"}, id="1-1")
    client.xgroup_create(key, "g", id="0")
    client.xreadgroup("g", "c", {key: ">"})
    pages = [f"/stream?key={key}", f"/group?key={key}&group=g"]
    for path in [*pages, *(f"/entry?key={key}&id=1-1&as={form}" for form in ("", *FORMS))]:
        answer = console.ask(path)
        assert (answer.status, len(answer.body) < 300_000) == (200, True)
        assert is_harmless(answer.text)


def test_a_list_holds_no_more_than_the_beginning_of_a_long_value(console: ConsoleThread, client: redis.Redis) -> None:
    """Lists hold only the beginning of a long value, in HTML and JSON. The entry's own JSON has all of it."""
    client.xadd("large", {b"v": b"x" * 1_000_000}, id="1-1")
    assert len(console.ask("/stream.json?key=large").body) < 40_000
    (field,) = console.ask("/entry.json?key=large&id=1-1").facts["fields"]
    assert (field["size"], len(field["value"])) == (1_000_000, 1_000_000)


def shape(value: object) -> object:
    """Return the field names of a JSON without its values."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


FRAME = dict.fromkeys(["page", "server", "at_ms", "trouble", "commands_sent"])
STREAM_NAMES = """
    key partitions length groups lag lag_at_least lag_at_most undelivered_age_ms pending pending_age_ms unowned
    first_entry last_entry last_entry_ms entries_added max_deleted_id added_per_second
"""
STREAM = dict.fromkeys(STREAM_NAMES.split()) | {"missing": {}}
GROUP = dict.fromkeys(column.name for column in GROUPS)
FIGURE = {"chart": None, "figure": None, "unit": None}
HISTORY = dict.fromkeys(["from_ms", "to_ms", "step_ms", "marks", "skipped"]) | {"figures": [FIGURE]}
FIELD = {"name": None, "form": None, "size": None, "value": None}


def frame(console: ConsoleThread, path: str) -> dict[str, object]:
    """Return the shape of a page's JSON, and check its lists of command lines."""
    facts = console.ask(path).facts
    assert all(isinstance(line, str) for line in [*facts.pop("shell"), *facts.pop("commands")])
    for figure in facts.get("history", {}).get("figures", ()):
        assert all(len(point) == 4 for point in figure.pop("points"))  # there may be none yet
    found = shape(facts)
    assert isinstance(found, dict)
    return found


def test_the_twins_keep_their_shape(console: ConsoleThread, client: redis.Redis) -> None:
    """Field names of a page's JSON do not change, since programs read them. Groups have the shell's names."""
    client.xadd("shapes", {"n": 1}, id="1-1")
    client.xadd("shapes", {"n": 2}, id="2-1")
    client.xgroup_create("shapes", "g", id="0")
    client.xreadgroup("g", "c", {"shapes": ">"}, count=1)
    overview = frame(console, "/overview.json")
    totals = (
        "streams groups entries added_per_second pending unowned undelivered_age_ms pending_age_ms lag_unknown waiting"
    )
    beside = (
        "limits limits_waiting recurring_schedules retention_removed retention_removed_unread cold_entries "
        "cold_live_bytes"
    )
    assert overview == FRAME | {
        "totals": dict.fromkeys(totals.split()),
        **dict.fromkeys(["findings", "causes", "alerts", "alerts_unknown", "alerts_left_out"]),
        "streams": [STREAM | {"groups": [GROUP], "hot_bytes": None, "cold_bytes": None}],
        "refused": {},
        "first": None,
        "history": HISTORY,
        "beside": dict.fromkeys(beside.split()),
    }
    entry = {"id": None, "added_ms": None, "fields": [FIELD]}
    looked = dict.fromkeys(["looked_at", "looked_up_to", "more"])
    stream = FRAME | STREAM | {"groups": [GROUP], "entries": [entry]} | looked
    waiting = ["stream", "waiting", "first_ms", "due_in_ms", "overdue_ms", "problem"]
    stream |= {"partition_list": None, "scheduled": dict.fromkeys(waiting) | {"first": None}}
    stream |= {"hot_bytes": None, "cold_bytes": None}
    stream |= {"history": HISTORY, "memory_bytes": None, "retention": None, "retention_differs": None}
    assert frame(console, "/stream.json?key=shapes") == stream
    pending = dict.fromkeys(
        ["stream", "id", "added_ms", "consumer", "idle_ms", "due_in_ms", "deliveries", "unowned", "fatal", "gone"]
    ) | {"fields": [FIELD]}
    assert frame(console, "/group.json?key=shapes&group=g") == FRAME | GROUP | {
        "findings": None,
        "lag_cause": dict.fromkeys(["why", "repair", "repair_note"]),
        "consumer_list": [dict.fromkeys(["consumer", "pending", "idle_ms", "inactive_ms"])],
        "consumers_unknown": None,
        "pending_list": [pending],
        "pending_next": None,
        "pending_looked_at": None,
        "partition_list": None,
        "history": HISTORY,
    }
    place = dict.fromkeys(["group", "state", "consumer", "idle_ms", "due_in_ms", "deliveries"])
    assert frame(console, "/entry.json?key=shapes&id=1-1") == FRAME | dict.fromkeys(
        ["stream", "id", "added_ms", "gone", "job"]
    ) | {"fields": [FIELD], "groups": [place]}
    hit = dict.fromkeys(["kind", "stream", "group", "consumer"])
    assert frame(console, "/search.json?q=shapes") == FRAME | {
        "query": None,
        "found": None,
        "hits": [hit],
        "entries": None,
    }
    assert frame(console, "/dead.json") == FRAME | dict.fromkeys(["letters", "streams", "streams_found", "unknown"])
    lists = "workers vanished ended pauses strange"
    found = {"found": dict.fromkeys(lists.split()), "unknown": None}
    assert frame(console, "/workers.json") == FRAME | dict.fromkeys(lists.split()) | found | {"limits": None}


def test_the_overview_does_not_call_good_what_it_marks(console: ConsoleThread, client: redis.Redis) -> None:
    """The overview does not report "nothing needs attention" while it marks a group as far behind."""
    assert "Nothing needs attention" in console.ask("/").text
    first = 10**12
    for ms in range(first, first + 40):
        client.xadd("far", {"n": 1}, id=f"{ms}-1")
    client.xgroup_create("far", "g", id="0")
    client.xreadgroup("g", "c", {"far": ">"}, count=1)
    client.xack("far", "g", f"{first}-1")
    console.forget()
    text = console.ask("/").text
    assert "Nothing is stuck, but 1 group has entries that wait" in text
    assert "Nothing needs attention" not in text


def test_findings_of_one_kind_are_one_row(console: ConsoleThread, client: redis.Redis) -> None:
    """Findings of one kind are one row with the remedy once, and the others are folded below it."""
    client.xadd("s", {"n": 1})
    for number in range(12):
        client.xgroup_create("s", f"g{number:02}", id="0")
    console.forget()
    text = console.ask("/").text
    assert "12 problems need attention" in text
    assert (text.count("millstream run MODULE:APP</code>"), text.count(">11 more of this kind<")) == (1, 1)
    assert all(f">g{number:02} on s: 1 not delivered</a>" in text for number in range(12))
    assert len(console.ask("/overview.json").facts["findings"]) == 12


def test_what_is_not_there_is_said_so(console: ConsoleThread, client: redis.Redis) -> None:
    """A missing stream, group or page is reported with a remedy, also in JSON."""
    client.set("text", "x")
    client.xadd("s", {"n": 1})
    for path, words in [
        ("/stream?key=nope", "there is no stream"),
        ("/stream?key=text", "holds no stream"),
        ("/stream", "the parameter key= is missing"),
        ("/group?key=s&group=nope", "has no group"),
        ("/entry?key=s&id=x", "is not an entry"),
        ("/stream?key=s&from=tomorrowish", "from"),
        ("/group?key=s&group=g&idle=soon", "idle"),
        ("/nowhere", "no page at this address"),
    ]:
        answer = console.ask(path)
        status = 400 if words in {"from", "idle"} else 404
        assert (path, answer.status, words in answer.text) == (path, status, True)
    assert "there is no stream" in console.ask("/stream.json?key=nope").facts["error"]
    assert console.ask("/?server=1").status == 400
    assert console.ask("/?" + "&".join(["a=1"] * 99)).status == 400


def test_an_entry_says_how_it_stands_in_each_group(console: ConsoleThread, client: redis.Redis) -> None:
    """An entry's page shows it as not delivered, pending or acknowledged in each group, and if it is gone."""
    for number in (1, 2, 3):
        client.xadd("standing", {"n": number}, id=f"{number}-0")
    for group, start in (("ahead", "3-0"), ("at work", "0"), ("behind", "1-0")):
        client.xgroup_create("standing", group, id=start)
    client.xreadgroup("at work", "c1", {"standing": ">"}, count=2)
    facts = console.ask("/entry.json?key=standing&id=2-0").facts
    assert [(one["group"], one["state"], one["consumer"]) for one in facts["groups"]] == [
        ("ahead", "done", None),
        ("at work", "pending", "c1"),
        ("behind", "undelivered", None),
    ]
    client.xdel("standing", "2-0")
    gone = console.ask("/entry?key=standing&id=2-0&as=text")  # another page is not served from a cached reading
    assert (gone.status, "no longer in the stream" in gone.text) in [(200, True), (200, False)]


def test_unowned_entries_and_their_payloads_are_on_the_groups_page(console: ConsoleThread, client: redis.Redis) -> None:
    """Entries without an owner are on the group's page with their payload, and can be listed alone."""
    for number in (1, 2, 3):
        client.xadd("nacked", {"n": f"value {number}"}, id=f"{number}-0")
    client.xgroup_create("nacked", "unowned", id="0")
    client.xreadgroup("unowned", "c1", {"nacked": ">"}, count=3)
    client.execute_command("XNACK", "nacked", "unowned", "FAIL", "IDS", 1, "2-0")
    facts = console.ask("/group.json?key=nacked&group=unowned&unowned=1").facts
    assert [(one["id"], one["consumer"], one["fields"][0]["value"]) for one in facts["pending_list"]] == [
        ("2-0", None, "value 2")
    ]
    assert (facts["unowned"], [one["code"] for one in facts["findings"]]) == (1, ["unowned"])
    for page in ("/group?key=nacked&group=unowned", "/entry?key=nacked&id=2-0"):
        assert '<span class="hot">no consumer</span>' in console.ask(page).text


def test_every_page_says_how_it_was_made(console: ConsoleThread, client: redis.Redis) -> None:
    """Every page shows its command line, its raw commands and its JSON address, with names quoted for a shell."""
    client.xadd(b"a\xff'b", {"n": 1}, id="1-1")
    page = console.ask("/stream?key=a%FF%27b")
    facts = console.ask("/stream.json?key=a%FF%27b").facts
    url = console.settings.servers[0].address
    assert facts["shell"][0] == f"millstream stream show $'a\\xff\\'b' --url {url}"
    assert 'XINFO STREAM "a\\xff\'b"' in facts["commands"]
    assert 'href="/stream.json?key=a%FF%27b"' in page.text


def test_no_secret_of_a_url_is_anywhere(data) -> None:
    """No page, JSON or error has a URL's password, with or without access to the server."""
    port = data.url.rpartition(":")[2].partition("/")[0]
    with ConsoleThread(f"redis://anna:s3cret@127.0.0.1:{port}/0", "redis://:s3cret@127.0.0.1:1/0") as console:
        for number in (0, 1):
            for path in ("/", "/overview.json", "/server", "/workers", "/dead", "/search?q=a"):
                answer = console.ask(f"{path}{'&' if '?' in path else '?'}server={number}")
                assert (answer.status in {200, 502}, b"s3cret" in answer.body) == (True, False)
                assert b"127.0.0.1" in answer.body


def test_dead_letters_are_on_the_first_page(console: ConsoleThread, client: redis.Redis) -> None:
    """Dead letters are a problem on the overview, with a link. Without any there is none."""
    client.xadd("orders", {"n": 1})
    assert "Nothing needs attention" in console.ask("/").text
    client.xadd("orders:dead", {"n": 1})
    console.forget()
    page = console.ask("/").text
    assert "1 problem needs attention" in " ".join(page.split())
    assert "/dead?key=orders%3Adead" in page
    (finding,) = console.ask("/overview.json").facts["findings"]
    assert (finding["code"], finding["group"]) == ("dead-letters", None)
