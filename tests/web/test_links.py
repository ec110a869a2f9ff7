"""Addresses carry names with any bytes."""

import html
import re
from urllib.parse import quote, urlsplit

import pytest
import redis

from millstream.server.thread import ServerThread
from millstream.web.page import AddressError, address, form_word, twin, words_of
from support.console import ConsoleThread

NAMES = [
    "orders",
    "",
    "a/b/../c",
    "a b+c%20&d=e#f?g;h",
    "größe \N{SNOWMAN}",
    "line\nbreak\r\x00",
    b"\xff\xfe orders \x80".decode(errors="surrogateescape"),
    "<script>alert(1)</script>",
    "'\"`",
    "key64",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_comes_back_from_an_address(name: str) -> None:
    """A name with any bytes becomes ASCII in an address and is read back."""
    made = address("/group", {"key": name, "group": name, "start": None}, 2)
    assert made.isascii()
    parts = urlsplit(made)
    assert (parts.path, parts.fragment) == ("/group", "")
    assert words_of(parts.query.encode()) == {"key": name, "group": name, "server": "2"}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_comes_back_from_a_form(name: str) -> None:
    """A name in a form is read back as the browser sends it. Other bytes are sent as base64."""
    field, value = form_word("key", name)
    assert value.isprintable()
    assert words_of(f"{field}={quote(value)}".encode()) == {"key": name}


def test_what_is_no_address_is_said_so() -> None:
    """An address with too many fields or invalid base64 is refused with the reason."""
    with pytest.raises(AddressError, match="at most 80"):
        words_of(b"&".join(b"a=1" for _ in range(81)))
    with pytest.raises(AddressError, match="key64 is not base64"):
        words_of(b"key64=x")


def test_a_twin_is_beside_its_page() -> None:
    """A page's JSON has the same address with ``.json`` and the same query. The overview's is /overview.json."""
    assert twin("/", "") == "/overview.json"
    assert twin("/group", "key=a&group=%FF") == "/group.json?key=a&group=%FF"


@pytest.mark.parametrize("sent_on", [True, False])
def test_a_console_below_a_path_of_a_proxy_leads_nowhere_else(data: ServerThread, sent_on: bool) -> None:
    """Below a proxy's path, every link, form, file and redirect stays below it, stripped or not."""
    with redis.Redis.from_url(data.url) as client:
        client.flushall()
        client.xadd("orders", {"n": 1})
        client.xgroup_create("orders", "billing", id="0")
        client.xreadgroup("billing", "web-1", {"orders": ">"})
        client.xadd("orders:dead", {"n": 1})
    with ConsoleThread(data.url, data.url, allow_changes=True, base="/ops/streams") as console:
        left, seen = ["/ops/streams/"], set[str]()
        while left and len(seen) < 60:
            path = left.pop(0)
            seen.add(path)
            answer = console.ask(path if sent_on else path.removeprefix("/ops/streams"))
            assert answer.status == 200, path
            if "html" in answer.headers["content-type"]:
                found = re.findall(r'(?:href|src|action|data-href|data-key)="(/[^"]*)"', answer.text)
                assert [each for each in found if not each.startswith("/ops/streams/")] == [], path
                pages = re.findall(r'(?:href|src)="(/[^"]*)"', answer.text)
                found_pages = (html.unescape(each) for each in pages if "/change" not in each)
                left += [each for each in dict.fromkeys(found_pages) if each not in seen and each not in left]
        assert {urlsplit(path).path.removeprefix("/ops/streams") for path in seen} >= {
            "/",
            "/group",
            "/stream",
            "/dead",
        }
        assert console.ask("/ops/streamsx/").status == 404


def test_half_a_character_is_an_address_too() -> None:
    """A name with an unpaired surrogate has a valid address, and its link finds nothing."""
    found = words_of(urlsplit(address("/worker", {"id": "\ud800"})).query.encode())
    assert found == {"id": "\\ud800"}
    assert form_word("id", "\ud800")[0] == "id64"
