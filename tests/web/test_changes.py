"""Changes through the pages: previewed, confirmed, made once, audited, and refused where not allowed."""

import html
import re
from urllib.parse import urlencode

import pytest
import redis

from millstream.client.emulate import WAITING
from support.console import Answer, ConsoleThread


@pytest.fixture
def held(client: redis.Redis, changing: ConsoleThread) -> redis.Redis:
    """A group with ten entries, four of them pending with one consumer."""
    for number in range(1, 11):
        client.xadd("s", {"n": number}, id=f"{number}-0")
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "c1", {"s": ">"}, count=4)
    changing.forget()
    return client


CLAIM = {"do": "pending claim", "key": "s", "group": "g", "consumer": "c1", "to": "c2"}


def preview(console: ConsoleThread, words: dict[str, str]) -> Answer:
    return console.ask(f"/change.json?{urlencode(words)}")


def confirm(console: ConsoleThread, words: dict[str, str], **headers: str) -> Answer:
    body = urlencode(words).encode()
    return console.ask("/change", method="POST", body=body, **{"origin": console.address, **headers})


def holders(client: redis.Redis) -> dict[bytes, int]:
    return {row["name"]: row["pending"] for row in client.xinfo_consumers("s", "g") if row["pending"]}


def test_a_place_is_found_behind_names_that_look_like_its_option(changing: ConsoleThread, held: redis.Redis) -> None:
    """A rewind finds its typed position even if the stream is named like the option ``--to``."""
    held.rename("s", "--to")
    words = {"do": "group rewind", "key": "--to", "group": "g", "to": "-3", "even_if_moved": "1"}
    facts = preview(changing, words).facts
    assert facts["question"] == "Deliver 3 entries again to group 'g' of '--to', from 1970-01-01 00:00:00 UTC?"


def test_a_change_is_previewed_confirmed_and_written_down(changing: ConsoleThread, held: redis.Redis) -> None:
    """A preview changes nothing. The confirmed change is audited with user, address and undo."""
    facts = preview(changing, CLAIM).facts
    assert (facts["applied"], facts["action"], holders(held)) == (False, "pending claim", {b"c1": 4})
    made = confirm(changing, CLAIM | {"digest": facts["digest"]})
    assert (made.status, "Done" in made.text, holders(held)) == (200, True, {b"c2": 4})
    ((_, written),) = held.xrange("millstream:audit")
    assert (written[b"action"], written[b"via"], written[b"from"]) == (b"pending claim", b"console", b"127.0.0.1")
    undo = {"do": "audit undo", "change": written[b"change"].decode()}
    undone = confirm(changing, undo | {"digest": preview(changing, undo).facts["digest"]})
    assert (undone.status, holders(held)) == (200, {b"c1": 4})


def test_a_group_is_rewound_by_its_page(changing: ConsoleThread, held: redis.Redis) -> None:
    """A rewind shows the group before and after, and the lag stays known."""
    words = {"do": "group rewind", "key": "s", "group": "g", "to": "2-0"}
    facts = preview(changing, words).facts
    table = {row["fact"]: (row["before"], row["after"]) for row in facts["before_after"]}
    assert (table["lag"], table["last delivered id"]) == ((6, 8), ("4-0", "2-0"))
    assert confirm(changing, words | {"digest": facts["digest"]}).status == 200
    (group,) = held.xinfo_groups("s")
    assert (group["last-delivered-id"], group["lag"]) == (b"2-0", 8)


def test_what_moved_since_its_preview_is_not_changed(changing: ConsoleThread, held: redis.Redis) -> None:
    """If the data changed after the preview, or without a digest, the page shows a new preview and changes nothing."""
    facts = preview(changing, {"do": "group rm", "key": "s", "group": "g"}).facts
    held.xreadgroup("g", "c2", {"s": ">"}, count=1)
    for digest in (facts["digest"], ""):
        again = confirm(changing, {"do": "group rm", "key": "s", "group": "g", "digest": digest})
        assert "the data changed after the preview" in again.text
        assert len(held.xinfo_groups("s")) == 1


@pytest.mark.parametrize("to", ["1-0", "-3", "start", "0"])
def test_a_group_that_is_being_read_is_rewound_by_the_first_confirmation(
    changing: ConsoleThread, held: redis.Redis, to: str
) -> None:
    """A rewind of an active group works at the first confirmation, to the previewed position."""
    words = {"do": "group rewind", "key": "s", "group": "g", "to": to}
    page = changing.ask(f"/change?{urlencode(words)}")
    (pause,) = re.findall(r'<a href="([^"]+)">a pause of its workers</a>', page.text)
    assert "Pause a group: no worker processes its entries" in changing.ask(html.unescape(pause)).text
    assert "the entries delivered meanwhile are delivered again too" in page.text
    assert "--even-if-moved</code>" in page.text
    inside = page.text.partition('<form class="confirm"')[2]
    shown = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', inside))
    held.xadd("s", {"n": 11}, id="11-0")
    held.xreadgroup("g", "c2", {"s": ">"}, count=3)
    assert "Done" in confirm(changing, shown).text
    place = {"1-0": b"1-0", "-3": b"1-0"}.get(to, b"0-0")
    assert held.xinfo_groups("s")[0]["last-delivered-id"] == place


def test_entries_that_are_gone_are_chosen_by_a_tick(changing: ConsoleThread, held: redis.Redis) -> None:
    """The group's page lists pending entries that are gone, and a tick selects them for acknowledgement."""
    held.xtrim("s", minid="3-0", approximate=False)
    page = changing.ask("/group?key=s&group=g").text
    assert "only entries trimmed or deleted from the stream" in page
    assert re.search(r'href="/change\?do=pending[^"]*gone=1[^"]*">Preview the remedy', page)
    listed = changing.ask("/group.json?key=s&group=g&gone=1").facts
    assert [one["id"] for one in listed["pending_list"]] == ["1-0", "2-0"]
    words = {"do": "pending ack", "key": "s", "group": "g", "gone": "1"}
    facts = preview(changing, words).facts
    assert facts["question"] == "Acknowledge 2 entries pending in 'g' of 's'?"
    assert "cannot be pending again" in facts["undo_note"]
    assert "Done" in confirm(changing, words | {"digest": facts["digest"]}).text
    assert [row["message_id"] for row in held.xpending_range("s", "g", "-", "+", 9)] == [b"3-0", b"4-0"]
    both = preview(changing, {**words, "ids": "3-0"})
    assert (both.status, "exclude each other" in both.text) == (400, True)


def test_a_read_only_console_changes_nothing(console: ConsoleThread, held: redis.Redis) -> None:
    """A read-only console refuses every post. It previews without a button, and explains how to allow changes."""
    facts = preview(console, CLAIM).facts
    answer = confirm(console, CLAIM | {"digest": facts["digest"]})
    assert (answer.status, "read-only" in answer.text, holders(held)) == (403, True, {b"c1": 4})
    page = console.ask(f"/change?{urlencode(CLAIM)}").text
    assert ('class="act' in page, "read-only" in page) == (False, True)
    assert "Change something" not in console.ask("/group?key=s&group=g").text
    assert "Change something" not in console.ask("/stream?key=s").text


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}])
def test_another_sites_page_changes_nothing(
    changing: ConsoleThread, held: redis.Redis, headers: dict[str, str]
) -> None:
    """A foreign page cannot make a change, even with the digest. No GET request changes anything."""
    facts = preview(changing, CLAIM).facts
    words = CLAIM | {"digest": facts["digest"], "anyway": "1"}
    assert confirm(changing, words, **headers).status == 403
    changing.ask(f"/change?{urlencode(words)}")
    assert holders(held) == {b"c1": 4}


def test_what_a_user_may_not_is_greyed_out_with_the_reason(data, client: redis.Redis) -> None:
    """A change that the user's rights do not allow is disabled with the reason, and refused if posted."""
    client.xadd("s", {"n": 1}, id="1-0")
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "c1", {"s": ">"})
    client.acl_setuser("looker", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@read", "+@connection"],
                       commands=["+info", "+acl|whoami", "+acl|dryrun", "+xinfo", "+command"])  # fmt: skip
    url = data.url.replace("redis://", "redis://looker:pw@")
    with ConsoleThread(url, allow_changes=True) as limited:
        page = limited.ask("/group?key=s&group=g").text
        assert "disabled" in page
        assert "run XGROUP SETID here" in page
        refused = preview(limited, CLAIM)
        assert (refused.status, "does not let the user" in refused.facts["error"]) == (403, True)
    client.acl_deluser("looker")


def test_an_undo_is_offered_where_the_audit_stream_has_the_change(data, held: redis.Redis) -> None:
    """An undo is offered only for a change that is in the audit stream."""
    held.acl_setuser("silent", enabled=True, passwords=["+pw"], keys=["s"], categories=["+@all"])
    with ConsoleThread(data.url.replace("redis://", "redis://silent:pw@"), allow_changes=True) as limited:
        digest = preview(limited, CLAIM).facts["digest"]
        page = confirm(limited, CLAIM | {"digest": digest})
    held.acl_deluser("silent")
    assert (page.status, holders(held)) == (200, {b"c2": 4})
    assert "It is not in the audit stream" in page.text
    assert "audit undo" not in page.text
    assert "audit+undo" not in page.text


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ({"do": "stream explode"}, 404, "is not a change of the console"),
        ({}, 404, "do= is missing"),
        (CLAIM | {"to": ""}, 400, "The consumer is missing"),
        (CLAIM | {"consumer": ""}, 400, "Nothing is selected"),
        (CLAIM | {"idle": "soon"}, 400, "idle"),
        (CLAIM | {"ids": "x"}, 400, "not an entry"),
        ({"do": "group rewind", "key": "s", "group": "g", "to": "nowhere"}, 400, "not a position"),
        ({"do": "group rm", "key": "s", "group": "<b>"}, 404, "no group"),
    ],
)
def test_a_wrong_word_is_said_so(
    changing: ConsoleThread, held: redis.Redis, words: dict[str, str], status: int, said: str
) -> None:
    """A wrong field is refused by the preview and by the confirmation with the same error."""
    for answer in (preview(changing, words), confirm(changing, words)):
        assert (answer.status, said in answer.text) == (status, True)
    assert "<b>" not in changing.ask(f"/change?{urlencode(words)}").text.partition("<main")[2]


@pytest.mark.parametrize("newest", [None, f"{2**64 - 1}-1"], ids=["none", "the last there can be"])
@pytest.mark.parametrize("do", ["dead retry", "dead rm"])
def test_letters_are_chosen_up_to_the_newest_whichever_that_is(
    changing: ConsoleThread, client: redis.Redis, do: str, newest: str | None
) -> None:
    """Previewing all dead letters works without any, and with one under the highest id."""
    if newest is not None:
        client.xadd("s:dead", {"no": "letter"}, id=newest)
    changing.forget()
    shown = preview(changing, {"do": do, "key": "s:dead", "all": ""})
    assert (shown.status, shown.facts.get("error")) == (200, None)


def test_who_was_refused_is_led_back_to_the_form(changing: ConsoleThread, held: redis.Redis) -> None:
    """Required fields are marked for the browser. A refused request has a link back to the form."""
    page = changing.ask("/group?key=s&group=g").text
    claims = re.findall(r"<form[^>]*>(?:(?!</form>).)*pending claim.*?</form>", page, re.DOTALL)
    assert len(claims) > 1
    for form in claims:
        assert re.search(r'<input name="to"[^>]* required', form), form
    assert not re.search(r'<input name="(ids|idle)"[^>]* required', page)
    for answer in (changing.ask(f"/change?{urlencode(CLAIM | {'to': ''})}"), confirm(changing, CLAIM | {"to": ""})):
        assert '<a href="/group?key=s&amp;group=g">Back</a>' in answer.text
    letters = changing.ask(f"/change?{urlencode({'do': 'dead rm', 'key': 's:dead'})}")
    assert '<a href="/dead?key=s%3Adead">Back</a>' in letters.text
    assert ">Back</a>" not in changing.ask("/nowhere").text


def test_entries_are_offered_to_nobody_but_readers(changing: ConsoleThread, held: redis.Redis) -> None:
    """A form that moves entries does not offer the consumer name under which delayed entries wait."""
    held.xgroup_createconsumer("s", "g", WAITING)
    changing.forget()
    page = changing.ask("/group?key=s&group=g").text
    assert re.search(r'name="to"[^>]*retry', page) is None
    assert "not a worker: entries that wait for their next try" in page
    held.xgroup_createconsumer("s", "g", "by-hand")
    changing.forget()
    assert "no worker reports this name" in changing.ask("/group?key=s&group=g").text


def test_a_form_has_an_end(changing: ConsoleThread) -> None:
    """A form over the size limit is refused."""
    assert confirm(changing, {"do": "x" * 2_000_000}).status == 413


@pytest.mark.parametrize(
    "words",
    [
        {"do": "dead edit", "ids": "1-0"},
        {"do": "dead edit", "ids": "1-0", "document": "{}"},
        {"do": "stream partition", "number": "4"},
        {"do": "pending claim", "group": "g", "ids": "1-0", "to": "c"},
    ],
    ids=str,
)
def test_a_key_that_is_not_a_stream_is_named(
    changing: ConsoleThread, client: redis.Redis, words: dict[str, str]
) -> None:
    """A key that is not a stream is a refusal that names it."""
    client.set("text", 1)
    page = preview(changing, {**words, "key": "text"})
    assert page.status in {400, 403, 404}
    assert page.facts["error"] == "the key 'text' holds no stream"
    assert changing.ask("/letter?key=text&id=1-0").status == 404


def test_a_damaged_descriptor_is_a_refusal(changing: ConsoleThread, client: redis.Redis) -> None:
    """A damaged partition descriptor is a refusal that names its key."""
    client.set("millstream:{s}:partitions", "junk")
    page = preview(changing, {"do": "stream unseal", "key": "s"})
    assert (page.status, "millstream:{s}:partitions does not describe" in page.facts["error"]) == (403, True)


def test_a_change_of_pending_entries_begins_with_the_filter_of_their_list(
    changing: ConsoleThread, held: redis.Redis
) -> None:
    """The forms of pending entries have the filter of the shown rows; a form without one of its parts has none."""
    page = changing.ask("/group?key=s&group=g&consumer=c1&deliveries=1&idle=0s").text
    parts = page.split('<details class="deed')[1:]
    forms = {name: next(one for one in parts if f'value="{name}"' in one) for name in ("pending ack", "pending claim")}
    for form in forms.values():
        for kept in ('name="consumer" value="c1"', 'name="deliveries" value="1"', 'name="idle" value="0s"'):
            assert kept in form
    parts = changing.ask("/group?key=s&group=g&consumer=c1&gone=1").text.split('<details class="deed')[1:]
    acks, claims = (next(one for one in parts if f'value="{name}"' in one) for name in forms)
    assert ('name="consumer" value="c1"' in acks, 'name="consumer" value=""' in claims) == (True, True)
