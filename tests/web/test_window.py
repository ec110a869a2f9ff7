"""The range of entries that a stream's page shows, and its links to the pages before and after."""

import pytest
import redis

from millstream.web.entries import window
from millstream.web.page import NoPageError
from support.console import ConsoleThread

NOW = 1_763_721_600_000


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ({}, ("XREVRANGE", "s", "+", "-", "COUNT", 3)),
        ({"order": "oldest"}, ("XRANGE", "s", "-", "+", "COUNT", 3)),
        ({"before": "5-1"}, ("XREVRANGE", "s", "(5-1", "-", "COUNT", 3)),
        ({"after": "5-1"}, ("XRANGE", "s", "(5-1", "+", "COUNT", 3)),
        ({"from": "5-1", "to": "9-0", "before": "7-0"}, ("XREVRANGE", "s", "(7-0", "5-1", "COUNT", 3)),
        (
            {"from": "10m ago", "to": "2025-11-21T10:40:00"},
            ("XREVRANGE", "s", str(NOW), str(NOW - 600_000), "COUNT", 3),
        ),
    ],
)
def test_words_of_an_address_become_a_range(words: dict[str, str], command: tuple[object, ...]) -> None:
    """Ids and times in an address become a range of entries."""
    assert window(words, NOW, 2).command("s") == command


@pytest.mark.parametrize("words", [{"from": "yesterday"}, {"to": "5-x"}, {"before": "5"}, {"after": "9-9 COUNT 1"}])
def test_what_is_neither_id_nor_time_is_refused(words: dict[str, str]) -> None:
    """A bound that is neither an id nor a time is refused by name."""
    with pytest.raises(NoPageError, match=next(iter(words))):
        window(words, NOW, 2)


def test_pages_follow_one_another(console: ConsoleThread, client: redis.Redis) -> None:
    """Pages show each entry once in both orders and directions, and the end pages lack the further link."""
    for number in range(1, 8):
        client.xadd("s", {"n": number}, id=f"{number}-0")

    def page(query: str) -> tuple[list[str], bool, bool]:
        path = f"/stream?key=s&count=3&{query}"
        ids = [each["id"] for each in console.ask(path.replace("?", ".json?")).facts["entries"]]
        text = console.ask(path).text
        return ids, 'rel="prev"' in text, 'rel="next"' in text

    assert page("") == (["7-0", "6-0", "5-0"], False, True)
    assert page("before=5-0") == (["4-0", "3-0", "2-0"], True, True)
    assert page("before=2-0") == (["1-0"], True, False)
    assert page("after=4-0") == (["7-0", "6-0", "5-0"], False, True)
    assert page("order=oldest") == (["1-0", "2-0", "3-0"], False, True)
    assert page("order=oldest&after=6-0") == (["7-0"], True, False)
    assert page("order=oldest&before=4-0") == (["1-0", "2-0", "3-0"], False, True)
    assert page("from=3-0&to=4-0") == (["4-0", "3-0"], False, False)
