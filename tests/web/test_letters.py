"""Dead letters on the pages: filters, counts within a limit, one letter, and the words of changes."""

import re
import time
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
import redis

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.ops.every import ACTIONS
from millstream.ops.letters import reading
from millstream.ops.plan import ChangePlan, Undo
from millstream.web.wording import LABELS, deed, label, short
from support.console import ConsoleThread

HOSTILE = "<script>alert(1)</script>\x1b[2J"


def die(client: redis.Redis, ident: str, **parts: Any) -> None:
    """Write a dead letter under an id."""
    usual = {"fields": (b"item", b"tea"), "stream": "orders", "id": "1-0", "group": "billing", "consumer": "c1",
             "deliveries": 5, "reason": "error", "error": "ValueError: no", "traceback": "File x", "published_ms": 1,
             "died_ms": 2}  # fmt: skip
    client.execute_command("XADD", "orders:dead", ident, *pack(DeadLetter(**{**usual, **parts})))


def listed(console: ConsoleThread, words: str) -> tuple[int, list[str]]:
    """Return the number of letters that fit a filter, and the ids on the page."""
    page = console.ask(f"/dead?key=orders:dead&{words}")
    assert page.status == 200, page.text
    facts = console.ask(f"/dead.json?key=orders:dead&{words}").facts
    return facts["fitting"], [one["id"] for one in facts["letter_list"]]


def test_letters_are_filtered_by_group_class_text_and_time(console: ConsoleThread, client: redis.Redis) -> None:
    """Each filter selects its letters, and filters together select those that fit all."""
    now = time.time_ns() // 1_000_000
    die(client, "1-0", group="audit", error="KeyError: 'x'")
    die(client, "2-0", fields=(b"item", b"Green COFFEE"))
    die(client, f"{now - 60_000}-0", error="KeyError: 'tea'")
    client.xadd("orders:dead", {"no": "letter"}, id=f"{now - 50_000}-0")
    assert listed(console, "") == (4, [f"{now - 50_000}-0", f"{now - 60_000}-0", "2-0", "1-0"])
    assert listed(console, "group=audit") == (1, ["1-0"])
    assert listed(console, "kind=KeyError") == (2, [f"{now - 60_000}-0", "1-0"])
    assert listed(console, "text=coffee") == (1, ["2-0"])
    assert listed(console, "since=1h-ago")[0] == 2
    assert listed(console, "until=1h-ago&group=billing") == (1, ["2-0"])
    assert listed(console, "kind=KeyError&group=billing&text=tea") == (1, [f"{now - 60_000}-0"])
    assert listed(console, "text=%FF%00") == (0, [])
    wrong = console.ask("/dead?key=orders:dead&since=tomorrowish&text=tea")
    assert (wrong.status, "it must be" in wrong.text) == (400, True)
    for kept in ('value="tomorrowish" aria-invalid="true"', 'value="tea"', 'name="key" value="orders:dead"'):
        assert kept in wrong.text
    assert "No letter fits" in console.ask("/dead?key=orders:dead&text=nothing").text


def test_a_bulk_action_affects_the_letters_that_fit_the_filter(changing: ConsoleThread, client: redis.Redis) -> None:
    """Each bulk action, and its line for the shell, has the filter of the rows; other letters stay."""
    now = time.time_ns() // 1_000_000
    die(client, "1-0", error="KeyError: 1705")
    die(client, "2-0", error="ValueError: KeyError 1705 is not the class", group="audit")
    die(client, f"{now - 60_000}-0", error="KeyError: 'tea'", fields=(b"order", b"1705"))
    die(client, f"{now - 50_000}-0", error="KeyError: 'x'")
    die(client, f"{now - 40_000}-0", error="KeyError: 'x'", fields=(b"order", b"1705"))
    wanted = {
        "text=order+1705": (2, [2]),
        "text=1705&since=1h-ago": (2, [2]),
        "until=1h-ago": (2, [1, 1]),
        "kind=KeyError": (4, [4]),
        "group=audit": (1, [1]),
        "kind=KeyError&text=%27tea%27&group=billing": (1, [1]),
    }
    for words, (fitting, classes) in wanted.items():
        changing.forget()
        page = changing.ask(f"/dead?key=orders:dead&{words}").text
        forms = [
            dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', one)) for one in _forms(unescape(page))
        ]
        counts = []
        for form in forms:
            plan = changing.ask("/change.json?" + urlencode({**form, "do": "dead rm"})).facts
            counts.append(int(plan["question"].split()[1]))
        assert sorted(counts) == sorted([*classes, fitting]), words
        assert f"All {fitting} that fit" in page
        assert "--all" not in changing.ask(f"/dead.json?key=orders:dead&{words}").facts["shell"][1]
    assert "All 5" in changing.ask("/dead?key=orders:dead").text


def _forms(page: str) -> list[str]:
    """Return the forms of a page that delete several letters."""
    forms = re.findall(r'<form[^>]*action="[^"]*/change".*?</form>', page, re.DOTALL)
    return [one for one in forms if 'value="dead rm"' in one and 'id="ticked"' not in one and 'name="ids"' not in one]


def test_counts_are_of_so_many_letters_and_the_page_says_so(
    console: ConsoleThread, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page reads the newest letters up to a number and a size, states it, and goes on with the older ones."""
    monkeypatch.setattr(reading, "COUNTED", 50)
    for number in range(1, 121):
        die(client, f"{number}-0", error=f"E{number % 3}: no")
    facts = console.ask("/dead.json?key=orders:dead").facts
    assert (facts["letters"], facts["looked_at"], facts["fitting"], facts["more"]) == (120, 50, 50, True)
    assert sum(one["letters"] for one in facts["classes"]) == sum(one["letters"] for one in facts["trend"]) == 50
    page = console.ask("/dead?key=orders:dead").text
    assert "The counts below are of the newest 50 that this page read" in page
    older = re.search(r'rel="next" href="([^"]*)"', page)
    assert older is not None
    assert older[1].endswith("before=111-0")
    assert 'every=1">count all</a>' in page
    whole = console.ask("/dead.json?key=orders:dead&every=1").facts
    assert (whole["looked_at"], whole["more"], sum(one["letters"] for one in whole["classes"])) == (120, False, 120)
    monkeypatch.setattr(reading, "VOLUME", 1000)
    assert console.ask("/dead.json?key=orders:dead&group=billing").facts["looked_at"] < 10


def test_a_letter_has_a_page_of_its_own(changing: ConsoleThread, client: redis.Redis) -> None:
    """A letter's page has its error, traceback, earlier deaths, folded raw fields, and the changes of it."""
    death = {"id": "0-1", "group": "billing", "error": HOSTILE, "died_ms": 1}
    die(
        client,
        "1-0",
        error=HOSTILE,
        traceback=HOSTILE,
        group=HOSTILE,
        history=(death,),
        fields=(b"n", HOSTILE.encode()),
    )
    client.xadd("orders:dead", {"_dead.fields": HOSTILE, HOSTILE: HOSTILE}, id="2-0")
    changing.forget()
    page = changing.ask("/letter?key=orders:dead&id=1-0")
    assert (page.status, "1 earlier death" in page.text, "_dead.deliveries" in page.text) == (200, True, True)
    assert [name for name in ("dead retry", "dead edit", "dead rm") if f'value="{name}"' in page.text] == [
        "dead retry", "dead edit", "dead rm",
    ]  # fmt: skip
    facts = changing.ask("/letter.json?key=orders:dead&id=1-0").facts
    assert (facts["id"], facts["deliveries"], facts["history"][0]["error"]) == ("1-0", 5, HOSTILE)
    for path in ("/letter?key=orders:dead&id=1-0", "/letter?key=orders:dead&id=2-0", "/dead?key=orders:dead"):
        text = changing.ask(path).text
        assert "<script>alert" not in text
        assert "\x1b" not in text
    assert "Not written by a worker" in changing.ask("/letter?key=orders:dead&id=2-0").text
    assert changing.ask("/letter?key=orders:dead&id=3-0").status == 404


def test_a_letter_of_any_size_is_shown(changing: ConsoleThread, client: redis.Redis) -> None:
    """A letter with megabytes has a page of bounded size, without an editor."""
    big = "x" * 2_000_000
    die(
        client,
        "1-0",
        error=big,
        traceback=big,
        fields=tuple(part for n in range(300) for part in (b"%d" % n, b"y" * 5000)),
    )
    changing.forget()
    for path in ("/letter?key=orders:dead&id=1-0", "/dead?key=orders:dead"):
        page = changing.ask(path)
        assert (page.status, len(page.body) < 1 << 20, "<textarea" in page.text) == (200, True, False)


def test_an_entry_is_set_aside_on_its_page(changing: ConsoleThread, client: redis.Redis) -> None:
    """The page of a pending entry previews its dead letter beside the button, and says why there is none."""
    client.xadd("orders", {"n": 1}, id="1-0")
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", "c1", {"orders": ">"})
    changing.forget()
    page = changing.ask("/entry?key=orders&id=1-0&aside=billing").text
    assert "Make dead letters of 1 entry</button>" in page
    assert 'name="digest"' in page
    for group in ("nobody", "%FF"):
        assert "with a group" in changing.ask(f"/entry?key=orders&id=1-0&aside={group}").text
    assert 'name="digest"' not in changing.ask("/entry?key=orders&id=1-0").text


def test_every_change_has_words() -> None:
    """Each action has a label of its own, and a confirming button names the amount."""
    assert set(LABELS) < {one.name for one in ACTIONS}
    assert len({label(one.name) for one in ACTIONS}) == len(ACTIONS)
    found = [label(name) for name in ("stream rm", "later move", "worker drain", "of nobody", "")]
    assert found == ["Delete the stream", "Move the schedule", "Drain the worker", "Of nobody", ""]
    assert (short("dead rm"), short("pending dead"), short("worker drain")) == ("Delete", "Make dead letter", "Drain")

    def words(action: str, question: str) -> str:
        return deed(ChangePlan(action, "s", "g", question, (), (), (), Undo(), {}))

    assert words("pending claim", "Claim 10000 entries pending in 'g' of 's' for 'c'?") == "Claim 10,000 entries"
    assert words("dead rm", "Delete 1 dead letter of s:dead for good?") == "Delete 1 dead letter"
    assert words("group rm", "Remove the group 'Move 9 entries' of 's'?") == "Delete the group"
