"""A refused URL is never quoted, since the end of its password is not known."""

import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

import millstream
from millstream import App
from millstream.cli.main import main
from millstream.client.discovery.cluster import parse_cluster
from millstream.client.discovery.sentinel import parse_service
from millstream.embedded.place import parse_place
from millstream.errors import ConfigError
from millstream.spark.options.common import find_url

SECRET = "hunter2"
WRONG = [
    f"redis+sentinel://app:{SECRET}@h:1/s?socket_timeout=5",
    f"redis+sentinel://app:{SECRET}@h:1",
    f"redis+sentinel://app:{SECRET}@h:1/s/db",
    f"redis+sentinel://app:{SECRET}@h:x/s",
    f"redis+sentinel://app:{SECRET}[@h:1/s",
    f"redis+sentinel://app:12/{SECRET}@h",
    f"redis+sentinel://h:1/s?sentinel_passwort={SECRET}",
    f"redis+sentinel://h:1,app:{SECRET}@i:1/s/x",
    f"redis+cluster://app:{SECRET}@h:1/orders",
    f"redis+cluster://app:{SECRET}@h:1?ssl=1",
    f"redis+cluster://app:a/{SECRET}@h:1",
    f"redis+cluster://app:{SECRET}@h:x,i:2",
    f"redis+cluster://app:[{SECRET}@h:1",
    f"redis+cluster://h:1?password={SECRET}",
    f"redis://app:{SECRET}@h:1/orders",
    f"redis://app:a@{SECRET}@h:port",
    f"redis://app:a/{SECRET}@h:1/0",
    f"redis://app:12/{SECRET}@h:1/0",
    f"redis://app:a#{SECRET}@h:1/0",
    f"redis://app:12?{SECRET}=b@h:1/0",
    f"redis://app:12?a={SECRET}@h:1/0",
    f"redis://h:{SECRET}",
    f"redis://h:1/{SECRET}",
    f"redis://h:1/0?db={SECRET}",
    f"redis://h:1/0?password={SECRET}&color=red",
    f"redis://h:1/0?socket_timeout={SECRET}",
    f"redis://h:1/0?protocol=2&ssl_min={SECRET}",
    f"redis://h:1/0?retry={SECRET}",
    f"redis://h:1/0?credential_provider={SECRET}",
    f"redis://h:1/0?redis_connect_func={SECRET}",
    f"redis://h:1/0?encoding_errors={SECRET}",
    f"rediss://h:1/0?ssl_cert_reqs={SECRET}",
    f"redis://app:{SECRET}@h:1/0?encoding=utf-9",
    f"rediss://app:{SECRET}@h:0/0",
    f"unix://app:{SECRET}@/tmp/x?db=y",
    f"app:{SECRET}@h:6379",
    f":{SECRET}@h:6379",
    f"reddis://app:{SECRET}@h:6379",
    f"http://app:{SECRET}@h:6379",
    f"file:///tmp/x?password={SECRET}",
    f"file:///tmp/x?fsync={SECRET}",
    f"file:///tmp/x?db={SECRET}",
    f"file://app:{SECRET}@h/x",
    f"memory://app/{SECRET}",
    f"memory://app?{SECRET}=1",
]


def ask(url: str) -> None:
    """Run the command line with the URL in its environment, since a password argument is refused by itself."""
    done = CliRunner().invoke(main, ["stream", "ls"], env={"MILLSTREAM_URL": url})
    assert done.exit_code != 0
    raise ConfigError(done.output + repr(done.exception))


def named(url: str) -> None:
    """Run the command line with the URL as its option."""
    done = CliRunner().invoke(main, ["stream", "ls", "--url", url])
    assert done.exit_code != 0
    raise ConfigError(done.output + repr(done.exception))


def close(client: Any) -> None:
    """Fail, since a refused URL must not make a client."""
    raise AssertionError(f"{client!r} was made")


DOORS: dict[str, Callable[[str], Any]] = {
    "connect": lambda url: close(millstream.connect(url)),
    "connect_async": lambda url: close(millstream.connect_async(url)),
    "app": lambda url: close(App(url).client),
    "spark": lambda url: find_url({"url": url}),
    "cli": ask,
    "--url": named,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("url", WRONG)
def test_a_refused_url_is_not_quoted(door: str, url: str) -> None:
    """The error of a refused URL has no part of the password in text, repr or traceback, by every entry point."""
    try:
        DOORS[door](url)
    except ConfigError as error:
        shown = [str(error), repr(error), json.dumps(error.args), "".join(traceback.format_exception_only(error))]
        assert not [text for text in shown if SECRET in text]
    else:
        assert door == "spark"  # an option of redis-py's, which the connection looks at


@pytest.mark.parametrize(
    "words", [["restore", "URL", "x"], ["restore", "x", "URL"], ["log", "check", "URL"]], ids=" ".join
)
@pytest.mark.parametrize("url", [f"unix://app:{SECRET}@/tmp/x", f"s3://AK:{SECRET}@b/x", f"redis://app:{SECRET}@h:1/0"])
def test_a_url_in_place_of_a_directory_is_refused_without_its_secret(words: list[str], url: str) -> None:
    """A URL in place of a directory is refused without its secret."""
    done = CliRunner().invoke(main, [url if word == "URL" else word for word in words])
    assert done.exit_code == 2
    assert "is a URL" in done.output
    assert SECRET not in done.output


def test_what_was_read_of_a_url_hides_its_secrets() -> None:
    """The repr of a parsed URL has no password."""
    for found in (
        parse_cluster(f"redis+cluster://app:{SECRET}@h:1"),
        parse_service(f"redis+sentinel://app:{SECRET}@h:1/s?sentinel_password={SECRET}"),
        parse_place("memory://orders"),
        millstream.connect(f"redis://app:{SECRET}@h:1/0?client_name=x"),
        millstream.connect_async(f"redis://app:{SECRET}@h:1/0"),
        millstream.connect(f"redis+sentinel://app:{SECRET}@h:1/s"),
    ):
        assert SECRET not in repr(found)
