"""A transaction that deletes its own user or ends its own connection, beside a real redis-server.

The replies are compared byte for byte, and also the keys that the transaction wrote.
"""

from collections.abc import Iterator

import pytest

from millstream.server.thread import ServerThread
from support import needs
from support.servers import redis_server
from support.wire import Wire, pack

GONE = "ACL DELUSER u"
EVERYTHING = ["reset", "on", "nopass", "+@all", "~*", "&*"]
# Rules of the default user, the commands before MULTI, and those of the transaction
CASES = [
    ("", "", [GONE, "SET k 1"]),
    ("", "", ["SET j 1", GONE, "SET k 1", "LPUSH l a"]),
    ("", "", [GONE, GONE, "SET k 1"]),
    ("", "", ["ACL DELUSER u default", "SET k 1"]),
    ("", "", [GONE, "ACL SETUSER u on nopass", "SET k 1"]),
    ("", "", [GONE, "CLIENT KILL USER u SKIPME no", "SET k 1"]),
    ("-set", "", [GONE, "SET k 1", "LPUSH l a"]),
    ("resetkeys ~j", "", [GONE, "SET k 1", "SET j 1"]),
    ("-@all +ping", "", [GONE, "SET k 1"]),
    (">secret", "", [GONE, "SET k 1"]),
    ("", "", ["ACL SETUSER u off", "SET k 1"]),
    ("", "", ["ACL SETUSER u -set", "SET k 1", "LPUSH l a"]),
    ("", "", ["AUTH default x", GONE, "ACL WHOAMI", "SET k 1"]),
    ("-set", "SUBSCRIBE c", [GONE, "PUBLISH c m", "SET k 1", "LPUSH l a"]),
    ("", "SUBSCRIBE c", ["ACL SETUSER u resetchannels &d", "PUBLISH c m", "SET k 1"]),
    ("", "SUBSCRIBE c", ["PUBLISH c before", "CLIENT KILL TYPE pubsub SKIPME no", "PUBLISH c after", "SET k 1"]),
    ("", "PSUBSCRIBE c*", [GONE, "PUBLISH c m", "SET k 1"]),
]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the URLs of Redis 8 and of Millstream."""
    with ServerThread() as ours, redis_server(tmp_path_factory.mktemp("redis"), path=needs.other("redis8")) as real:
        for url in (real.url, ours.url):
            with Wire(url) as first:
                assert first.ask("ACL", "SETUSER", "admin", *EVERYTHING) == b"OK"
        yield real.url, ours.url


def received(wire: Wire) -> bytes:
    """Return the bytes that arrive until the server closes the connection."""
    data = b""
    while piece := wire.socket.recv(65536):
        data += piece
    return data


def run(url: str, rules: str, before: str, commands: list[str]) -> tuple[bytes, object, object]:
    """Return EXEC's reply, the keys, and the refusals in ACL LOG."""
    with Wire(url) as admin, Wire(url) as own:
        assert admin.ask("AUTH", "admin", "") == b"OK"
        admin.ask("FLUSHALL")
        admin.ask("ACL", "LOG", "RESET")
        for name, its in (("u", ""), ("default", rules)):
            assert admin.ask("ACL", "SETUSER", name, *EVERYTHING, *its.split()) == b"OK"
        assert isinstance(own.ask("HELLO", 3, "AUTH", "u", ""), dict)
        if before:
            own.ask(*before.split())
        for words in ("MULTI", *commands):
            own.ask(*words.split())
        own.socket.sendall(pack("EXEC") + pack("QUIT"))  # QUIT ends the connection where the transaction does not
        answer = received(own)
        refused = [entry[3::2][:4] for entry in admin.ask("ACL", "LOG")]
        return answer, sorted(admin.ask("KEYS", "*")), refused


@pytest.mark.parametrize(("rules", "before", "commands"), CASES)
def test_the_rest_of_a_transaction_runs_alike(
    urls: tuple[str, str], rules: str, before: str, commands: list[str]
) -> None:
    """After a transaction deletes its own user, its further commands run as the default user, without replies."""
    real, ours = (run(url, rules, before, commands) for url in urls)
    assert ours == real
