"""URLs that redis-py misreads are a clear error without a password."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import millstream
from millstream.client.connect import async_client, sync_client
from millstream.errors import ConfigError
from millstream.printable import without_password
from support.ports import free_port

CLIENTS: list[Callable[[str], Any]] = [sync_client, async_client]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://me:secret@h:1/orders", "the part after the port must be the number of a database"),
        ("redis://me:secret@h:1/-1", "the part after the port must be the number of a database"),
        ("rediss://me:secret@h:1/1/2", "the part after the port must be the number of a database"),
        ("redis://me:secret@h:port/0", "its port is not a number from 1 to 65535"),
        ("redis://me:secret@h:99999/0", "its port is not a number from 1 to 65535"),
        ("redis://me:sec#secret@h:1/0", "its port is not a number from 1 to 65535"),
        ("redis://me:secret?secret@h:1/0", "its port is not a number from 1 to 65535"),
        ("redis://me:a@secret@h:port/0", "its port is not a number from 1 to 65535"),
        ("redis://me:secret[@h:1/0", "it is not a URL"),
        ("redis://[::1", "it is not a URL"),
        ("redis://me:secret@h:0/0", "there is no port 0"),
        ("redis://me:secret@h/0?db=x", "its db is not the number of a database"),
        ("unix://me:secret@/tmp/x?db=x", "its db is not the number of a database"),
        ("redis://me:secret@h/0?socket_timeout=soon", "Invalid value for 'socket_timeout'"),
        ("redis://me:secret@h/0?color=red", "there is no option 'color' for a connection"),
        ("unix://me:secret@/tmp/x?color=red", "there is no option 'color' for a connection"),
        ("http://me:secret@h", "a server URL starts with one of redis://"),
        ("redis://h/0?password=secret&color=red", "there is no option 'color'"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(client: Callable[[str], Any], url: str, told: str) -> None:
    """A wrong database or port, which redis-py takes for a default, is an error with the reason."""
    with pytest.raises(ConfigError, match=told) as caught:
        client(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", ("h", None)),
        ("redis://h:7/", ("h", None)),
        ("redis://h/3/", ("h", 3)),
        ("redis://h?db=4", ("h", 4)),
        ("redis://h/orders?db=4", ("h", 4)),
        ("redis://h/3?db=", ("h", 3)),
        ("rediss://u:p%40@[::1]:7/2?ssl_cert_reqs=none", ("::1", 2)),
        ("unix:///tmp/a.sock?db=5", (None, 5)),
    ],
)
def test_a_right_url_means_what_it_says(client: Callable[[str], Any], url: str, expected: tuple[Any, Any]) -> None:
    """URLs that redis-py documents are accepted as they are."""
    told = client(url).connection_pool.connection_kwargs
    assert (told.get("host"), told.get("db")) == expected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:a@b@h:1/0?client_name=c@d", "redis://u:***@h:1/0?client_name=c@d"),
        ("redis://h:6379/0?client_name=c@d", "redis://h:6379/0?client_name=c@d"),
        ("redis://u:sec/ret@h:1/0", "redis://u:***@h:1/0"),
        ("redis+cluster://u:p@h:1,i:2", "redis+cluster://u:***@h:1,i:2"),
    ],
)
def test_only_the_password_is_hidden(url: str, shown: str) -> None:
    """Only the password is masked. The other parts stay, as they tell servers apart."""
    assert without_password(url) == shown


def test_sentinels_that_do_not_answer_are_named() -> None:
    """Sentinels that do not answer are named with the reason, not reported as without a master."""
    port = free_port()
    with pytest.raises(redis.ConnectionError, match=f"no Sentinel of 'svc' answers: .*{port}.*refused"):
        millstream.connect(f"redis+sentinel://127.0.0.1:{port}/svc", retry=Retry(NoBackoff(), 0)).ping()


async def _pong(client: Any) -> None:
    answer = client.ping()
    if isinstance(answer, Awaitable):
        await answer


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_connection_that_cannot_be_made_has_a_reason_in_plain_words(
    client: Callable[[str], Any], tmp_path: Path
) -> None:
    """A failed connection is explained in words over TCP, TLS and a socket file, without error numbers."""
    port = free_port()
    reasons = {
        f"redis://127.0.0.1:{port}": f"connection refused at 127.0.0.1:{port}",
        f"rediss://localhost:{port}": f"connection refused at localhost:{port}",
        f"unix://{tmp_path}/none": f"no such file or directory at {tmp_path}/none",
    }
    for url, reason in reasons.items():
        with pytest.raises(redis.exceptions.ConnectionError) as refused:
            await _pong(client(url))
        assert str(refused.value) == reason
