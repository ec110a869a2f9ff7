"""CLIENT REPLY OFF and SKIP with what comes unasked: byte for byte what redis-server sends."""

import pytest

from millstream.server.thread import ServerThread
from support.servers import ServerProcess
from support.wire import Wire, pack

OFF, SKIP, ON = (pack("CLIENT", "REPLY", word) for word in ("OFF", "SKIP", "ON"))
JOIN, LEAVE = pack("SUBSCRIBE", "a", "b"), pack("UNSUBSCRIBE", "a")


def heard(url: str, version: int, sent: bytes) -> bytes:
    """Everything a server sends to these bytes, and to a PING and QUIT behind them."""
    with Wire(url, version) as wire:
        wire.socket.sendall(sent + ON + pack("RESET") + pack("PING", "end"))
        data = b""
        while b"$3\r\nend\r\n" not in data:
            more = wire.socket.recv(65536)
            assert more, data
            data += more
        return data


@pytest.mark.realserver
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(OFF + JOIN, id="off"),
        pytest.param(SKIP + JOIN + LEAVE, id="skip"),
        pytest.param(OFF + JOIN + LEAVE + pack("UNSUBSCRIBE"), id="leave"),
        pytest.param(OFF + pack("PSUBSCRIBE", "p*") + pack("PUNSUBSCRIBE"), id="patterns"),
        pytest.param(OFF + pack("UNSUBSCRIBE"), id="none"),
        pytest.param(OFF + pack("SUBSCRIBE"), id="refused"),
        pytest.param(OFF + JOIN + pack("PING"), id="ping"),
        pytest.param(SKIP + pack("GET", "x") + JOIN, id="used up"),
        pytest.param(OFF + pack("MULTI") + pack("SET", "x", 1) + JOIN + pack("EXEC"), id="exec"),
    ],
)
def test_confirmations_are_sent_to_who_wants_no_replies(each_redis: ServerProcess, version: int, sent: bytes) -> None:
    """Confirmations of SUBSCRIBE and its kin are no replies: OFF and SKIP do not silence them, as in Redis."""
    with ServerThread() as server:
        assert heard(server.url, version, sent) == heard(each_redis.url, version, sent)
