"""A console over a server that is not Redis reports that on each page."""

import pytest

from millstream.web import rendering
from millstream.web.page import Asked, WebPage
from support.answers import WRONG, same_answer
from support.console import ConsoleThread

PLACES = """/ /overview.json /stream?key=s /stream.json?key=s /stream.jsonl?key=s /stream.csv?key=s /entry?key=s&id=1-1
    /group?key=s&group=g /dead /dead?key=s /workers /workers.json /spark /query?id=q /archive /server /search?q=a
    /job?id=1 /change?do=stream+trim&key=s /change?do=group+rewind&key=s&group=g&to=end /change?do=dead+retry&key=s"""


@pytest.mark.parametrize("reply", WRONG.values(), ids=WRONG)
def test_no_reply_ends_a_page(reply: bytes) -> None:
    """No reply of a server causes an internal error or a truncated page."""
    with same_answer(reply) as url, ConsoleThread(url, allow_changes=True) as console:
        for place in PLACES.split():
            answer = console.ask(place)
            assert "Internal Server Error" not in answer.text, place
            assert answer.text.rstrip().endswith(("</html>", "}")), place


def test_a_page_that_was_begun_ends_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the second half of a page is shown there, and the page ends properly."""
    drawn = rendering.rest

    def rest(page: WebPage, asked: Asked) -> bytes:
        if page.name != "trouble":
            raise KeyError("no such figure")
        return drawn(page, asked)

    monkeypatch.setattr(rendering, "rest", rest)
    monkeypatch.setattr("millstream.web.serving.app.AT_ONCE", 0.0)
    with ConsoleThread("memory://unreadable") as console:
        answer = console.ask("/")
    assert answer.status == 200
    assert "KeyError in test_wrong_replies.py" in answer.text
    assert answer.text.rstrip().endswith("</html>")
