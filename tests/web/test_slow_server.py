"""With a slow server the beginning of a page is sent at once, and then the rest."""

import http.client

import pytest
import redis

from support.console import ConsoleThread
from support.waiting import DEADLINE


def test_a_page_begins_before_the_server_has_answered(
    console: ConsoleThread, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page begins before the server has replied. The rest follows in the same answer and needs no script."""
    monkeypatch.setattr("millstream.web.serving.app.AT_ONCE", 0.1)
    client.xadd("orders", {"n": 1})
    client.execute_command("CLIENT", "PAUSE", 1000, "ALL")
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=DEADLINE)
    try:
        connection.request("GET", "/stream?key=orders")
        answer = connection.getresponse()
        first = answer.read1(1 << 20)
        assert b'<p id="asking"' in first
        assert b"<title>orders" in first
        assert b"<main" not in first
        whole = first + answer.read()
    finally:
        connection.close()
    assert answer.status == 200
    assert whole.count(b"<main") == whole.count(b"<title") == whole.count(b"</html>") == 1
    assert b"ever added" in whole


def test_a_page_that_is_quick_has_its_own_status(console: ConsoleThread, client: redis.Redis) -> None:
    """A quick page is sent in one piece with its own status code."""
    console.ask("/stream?key=nope")
    answer = console.ask("/stream?key=nope")
    assert (answer.status, b'id="asking"' in answer.body) == (404, False)
