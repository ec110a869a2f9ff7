"""The console's protection against requests from foreign pages, and the headers of its answers."""

import base64
import socket
from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from millstream.web.serving.guard import POLICY, host_name
from millstream.web.settings import Access, digest
from support.console import ConsoleThread
from support.waiting import eventually


@pytest.fixture(scope="module")
def locked(data) -> Iterator[ConsoleThread]:
    """A console with a password and a trusted proxy on this machine."""
    access = Access(frozenset({"console.example.org"}), digest("s3cret/é"), "x-user")
    with ConsoleThread(data.url, access=access) as found:
        yield found


def basic(password: str, user: str = "anna") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "[::1]:{}", "LOCALHOST", "10.1.2.3:{}"])
def test_numbers_and_localhost_are_the_consoles_names(console: ConsoleThread, host: str) -> None:
    """The console answers to IP addresses and to localhost."""
    assert console.ask("/", host=host.format(console.port)).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example:{}", "localhost.evil.example", "127.0.0.1.evil.example:{}", "", "a:b:c", "127.0.0.1:x", "[::1"],
)
def test_a_name_that_is_not_the_consoles_gets_no_page(console: ConsoleThread, client, host: str) -> None:
    """A foreign host name, as in DNS rebinding, gets no data. The answer names --allow-host."""
    client.xadd("orders", {"n": 1})
    for path in ("/", "/overview.json", "/static/console.js", "/nowhere"):
        answer = console.ask(path, host=host.format(console.port))
        assert (answer.status, b"orders" in answer.body) in [(421, False), (400, False)]
    assert "--allow-host" in console.ask("/", host="evil.example").text


@pytest.mark.parametrize(
    "framing", ["Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\ncontent-length: 0"]
)
def test_a_request_with_two_ends_is_refused_and_the_connection_closed(console: ConsoleThread, framing: str) -> None:
    """A request with two contradictory lengths is refused and its connection closed, so that none hides in the body."""
    head = f"POST /change HTTP/1.1\r\nHost: 127.0.0.1\r\n{framing}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection:
        connection.sendall(f"{head}0\r\n\r\nGET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1


def test_a_name_that_was_allowed_is_answered(locked: ConsoleThread) -> None:
    """An allowed host name is answered with and without port, in any case, and with a final dot."""
    for host in ("console.example.org", "Console.Example.Org:443", "console.example.org."):
        assert locked.ask("/", host=host, authorization=basic("s3cret/é")).status == 200


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("a", "a"),
        ("A.b:1", "a.b"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        (":80", None),
        ("a:", None),
        ("[::1]x", None),
    ],
)
def test_a_name_is_taken_out_of_its_header(host: str, name: str | None) -> None:
    """A host name is parsed from its header in lower case without port, or is None."""
    assert host_name(host) == name


def test_another_sites_page_gets_nothing(console: ConsoleThread) -> None:
    """Scripts and images of a foreign page get nothing, also from another port. Following a link is allowed."""
    for site in ("cross-site", "same-site"):
        asked = console.ask("/overview.json", sec_fetch_site=site, sec_fetch_mode="no-cors")
        assert asked.status == 403
        assert console.ask("/", sec_fetch_site=site, sec_fetch_mode="navigate").status == 200
    assert console.ask("/", sec_fetch_site="same-origin", sec_fetch_mode="cors").status == 200
    assert console.ask("/", sec_fetch_site="none", sec_fetch_mode="navigate").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "{own}", "sec_fetch_site": "cross-site"},
        {"origin": "{own}", "sec_fetch_site": "same-site"},
        {"origin": "ftp://{place}"},
        {"origin": "{own}.evil.example"},
        {"origin": "{own}", "Origin": "http://evil.example"},
        {"origin": "{own}", "sec_fetch_site": "same-origin", "Sec_Fetch_Site": "cross-site"},
    ],
)
def test_a_change_needs_to_come_from_the_console(console: ConsoleThread, headers: dict[str, str]) -> None:
    """A change needs the console's own Origin header."""
    own, place = console.address, console.address.removeprefix("http://")
    given = {name: value.format(own=own, place=place) for name, value in headers.items()}
    for path in ("/", "/group?key=a&group=b", "/nowhere"):
        assert console.ask(path, method="POST", **given).status == 403


def test_a_change_from_the_console_gets_through(console: ConsoleThread) -> None:
    """A post with the console's own Origin passes the guard."""
    assert console.ask("/", method="POST", origin=console.address, sec_fetch_site="same-origin").status == 405


def test_every_answer_carries_the_policy(console: ConsoleThread) -> None:
    """Every answer has the security headers: own scripts only, no frames, no sniffing, no caching."""
    for path, host in (("/", None), ("/overview.json", None), ("/nowhere", None), ("/", "evil.example")):
        headers = console.ask(path, host=host).headers
        assert headers["content-security-policy"] == POLICY
        assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
    assert "immutable" in console.ask("/static/console.css").headers["cache-control"]
    for word in ("unsafe", "http:", "*", "data:"):
        assert word not in POLICY


def test_files_are_only_ours(console: ConsoleThread) -> None:
    """Only files of the static folder are served, for any path."""
    for path in ("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static/base.html", "/static/"):
        assert console.ask(path).status == 404


def test_without_the_password_nobody_comes_in(locked: ConsoleThread, client) -> None:
    """Without the right password no page is served."""
    client.xadd("orders", {"n": 1})
    tries = [(path, {}) for path in ("/", "/overview.json", "/static/console.js", "/nowhere")]
    tries += [("/", {"authorization": given}) for given in (basic("other"), "Basic %%%", "Bearer x", "Basic")]
    for path, headers in tries:
        answer = locked.ask(path, **headers)
        assert (answer.status, b"orders" in answer.body) == (401, False)
        assert answer.headers["www-authenticate"].startswith("Basic ")
    answer = locked.ask("/", authorization=basic("s3cret/é"))
    assert (answer.status, "anna" in answer.text) == (200, True)


def test_a_proxys_word_counts_from_its_address_alone(data) -> None:
    """A proxy's user header counts only from the proxy's address."""
    with ConsoleThread(data.url, access=Access(user_header="x-user")) as trusted:
        assert "berta" in trusted.ask("/", x_user="berta").text
        assert trusted.ask("/").status == 401
        assert trusted.ask("/", x_user=" ").status == 401
    away = Access(user_header="x-user", proxies=(ip_network("10.0.0.1"),))
    with ConsoleThread(data.url, access=away) as distant:
        assert distant.ask("/", x_user="berta").status == 403


def test_a_user_that_is_named_twice_is_nobody(data) -> None:
    """A user header sent twice is refused, so that a client cannot add another user's name."""
    with ConsoleThread(data.url, access=Access(user_header="x-user")) as trusted:
        answer = trusted.ask("/", x_user="mallory", X_User="anna")
        assert (answer.status, "mallory" in answer.text, "replace it" in answer.text) == (401, False, True)


@pytest.mark.parametrize(
    ("peer", "counts"),
    [
        ("10.0.0.1", True),
        ("::ffff:10.0.0.1", True),
        ("::ffff:a00:1", True),
        ("10.0.1.1", False),
        ("10.0.0.1.evil.example", False),
        ("2001:db8:0:0::7", True),
        ("2001:db9::7", False),
        ("::10.0.0.1", False),
        ("", False),
    ],
)
def test_a_proxy_is_known_however_its_address_is_written(peer: str, counts: bool) -> None:
    """A trusted proxy's address matches in IPv4 and mapped IPv6 form, and by network."""
    access = Access(proxies=(ip_network("10.0.0.0/24"), ip_network("2001:db8::/32")))
    assert access.is_proxy(peer) == counts


def test_a_form_that_is_cut_is_no_failure(console: ConsoleThread, caplog: pytest.LogCaptureFixture) -> None:
    """A client that disconnects in the middle of a form leaves one log line."""
    head = f"POST /change HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\nOrigin: {console.address}\r\n"
    with socket.create_connection(("127.0.0.1", console.port)) as opened:
        opened.sendall(f"{head}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n".encode())
        assert b"100" in opened.recv(100)  # it waits for the form
    eventually(lambda: not console.process.server_state.tasks, what="it is done")
    assert "Exception" not in caplog.text
