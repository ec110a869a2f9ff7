"""A login that the server refuses: every first contact names the login, and does not advise to start the server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import MillstreamError, NotLetInError
from millstream.spark.archiving.replay_model import Replay, ReplayResult
from millstream.spark.archiving.replay_target import ReplayTarget
from millstream.spark.monitoring.store import look
from millstream.spark.options.read import parse
from millstream.spark.options.write import SinkOptions
from millstream.spark.read.stream_info import StreamInfo
from millstream.spark.write.sink import check_server
from support.servers import redis_server

REFUSED = r"the server refuses the login: .*\. Give a valid user and password, or "


@pytest.fixture(params=["redis://", "redis+cluster://"])
def refusing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a server, with a password that it refuses."""
    server = redis_server(tmp_path, "--requirepass", "right")
    plain = server.url
    server.url = plain.replace("//", "//:right@")
    with server:
        yield plain.replace("redis://", f"{request.param}:s3cret@").removesuffix("/0")


def test_every_first_contact_names_the_refused_login(refusing: str) -> None:
    """A read, a sink, a replay and the list of queries report the refused login, without the password."""
    source = StreamInfo(parse({"url": refusing, "stream": "s"}))
    for ask, kind in (
        (lambda: check_server(SinkOptions(refusing, "out")), NotLetInError),
        (lambda: source.keys("*"), NotLetInError),
        (lambda: ReplayTarget(Replay("archive", "s", refusing, "s")).begin(ReplayResult()), NotLetInError),
        (lambda: look(refusing), MillstreamError),
    ):
        with pytest.raises(kind, match=REFUSED) as caught:
            ask()
        assert "s3cret" not in str(caught.value)
    source.close()


def test_sentinels_with_a_password_ask_for_it(tmp_path: Path) -> None:
    """Sentinels that refuse the login have a password of their own, which the error names."""
    server = redis_server(tmp_path, "--requirepass", "right")
    plain = server.url
    server.url = plain.replace("//", "//:right@")
    with server:
        url = plain.replace("redis://", "redis+sentinel://").removesuffix("/0") + "/service"
        with pytest.raises(NotLetInError, match=r"no Sentinel of 'service' .* Give the Sentinels' password in the URL"):
            check_server(SinkOptions(url, "out"))
