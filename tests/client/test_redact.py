"""Secrets in URLs are masked in every text, log, repr and command."""

import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import millstream
from client.test_secret_urls import SECRET, WRONG
from millstream import App
from millstream.cli.main import main
from millstream.errors import ConfigError, UsageError
from millstream.logs import logger
from millstream.printable import has_password, without_password, without_secrets
from millstream.spark.archiving.objects.storage import ObjectStorage
from millstream.spark.hashes.options import parse as parse_hashes
from millstream.spark.options.read import parse as parse_read
from millstream.spark.options.write import parse as parse_write
from millstream.worker.child import find_app
from millstream.worker.model.error_text import summarize

OTHERS = [
    f"redis://{SECRET}@h:1/0",
    f"{SECRET}@h:1",
    f"redis://h?username={SECRET}",
    f"redis://h?%70assword={SECRET}",
    f"redis://u:a%40{SECRET}@h",
    f"redis://u:a@b/{SECRET}@h:1/0",
    f"rediss://u:p@{SECRET}@h:1",
    f"redis://h:1/0?password=a@{SECRET}",
    f"redis://h:1/0?password=a&{SECRET}",
    f"redis://h#{SECRET}",
    f"REDIS://u:{SECRET}@h",
    f"redis:/u:{SECRET}@h",
    f"redis+sentinel://u:{SECRET}@h:1,i:2/s/0?sentinel_password={SECRET}",
    f"redis+sentinel://u:{SECRET}@h:1,u:{SECRET}@i:2/s",
    f"redis+cluster://{SECRET}@a:1,b:2",
    f"memory://a?password={SECRET}",
    f"s3://AKIA:ab/{SECRET}@bucket/x",
    f"s3://AKIA:/{SECRET}@bucket/x",
    f"s3://AKIA:12/{SECRET}@bucket/x",
    f"s3://bucket/x?secret_access_key={SECRET}",
    f"s3://{SECRET}@bucket/x",
    f"https://u:{SECRET}@h/x",
    f"https://h/x?X-Amz-Signature={SECRET}",
    f"postgresql+psycopg://u:{SECRET}@h/db",
    f"redis://u:a b {SECRET}@h",
    f"redis://u:a b{SECRET}@h:x",
    f"redis://:a b{SECRET} c@h:1/0",
]
URLS = [*WRONG, *OTHERS]


@pytest.mark.parametrize(
    "url",
    [
        *(f"redis:/u:{SECRET}@h:1", f"redis:u:{SECRET}@h", f"//u:{SECRET}@h", f"u:{SECRET}@h:1", f":{SECRET}@h"),
        *(f"{SECRET}@h:6379", f"report:u:{SECRET}@x", f"report:/u:{SECRET}@h:1"),
    ],
)
def test_a_store_and_a_report_do_not_print_what_they_refuse(url: str) -> None:
    """open_store, connect and an app refuse a malformed URL without its secret."""
    for use in (
        millstream.open_store,
        lambda url: millstream.connect(url).ping(),
        lambda url: App(url).publish_sync("s", 1),
    ):
        with pytest.raises(UsageError) as caught:
            use(url)
        assert SECRET not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize("url", URLS)
def test_no_text_has_the_secret(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A URL's password is masked alone, in a sentence, in an error, in a log record and in tracebacks."""
    shown = [without_password(url), without_secrets(f"bad '{url}': no"), summarize(ValueError(f"cannot reach {url}."))]
    log = logger("millstream.redact-test")
    chain = OSError(f"'{url}'")
    chain.__cause__ = ValueError(f"cannot use {url}")
    log.warning("cannot reach %s", url, exc_info=chain)
    record = caplog.records[-1]
    shown += [record.getMessage(), logging.Formatter().format(record)]
    assert not [text for text in shown if SECRET in text]


PART = st.text("ab:/?#@[]%&=,", max_size=8)


@given(PART, PART, st.sampled_from(["redis", "rediss", "redis+sentinel", "redis+cluster", "s3"]))
def test_a_password_with_any_mark_is_hidden(before: str, after: str, scheme: str) -> None:
    """A password with special characters, also unescaped ones, is masked as a whole."""
    url = f"{scheme}://app:{before}{SECRET}{after.rpartition('@')[0]}x@h:1"
    assert SECRET not in without_password(url)
    assert SECRET not in without_secrets(f"cannot reach {url}: no")


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("redis://app@h/0", False),
        ("redis://app:p@h/0", True),
        ("redis://h?username=app", False),
        ("redis://h?password=p", True),
        ("redis://h?client_name=a@b", False),
        ("app:p@h", True),
        ("context:prod", False),
        ("report:/tmp/a@b", False),
    ],
)
def test_a_user_name_alone_is_not_refused(url: str, secret: bool) -> None:
    """A user name without a password is accepted on the command line."""
    assert has_password(url) is secret


HARMLESS = [
    "redis://h",
    "redis://[::1]:6379/0",
    "redis://h:6379/0?client_name=c@d&socket_timeout=2.5&ssl_cert_reqs=none",
    "redis+sentinel://a:1,b:2/orders/0",
    "redis+cluster://a:1,b:2",
    "memory://orders",
    "file:///a@b/c?fsync=everysec",
    "unix:///tmp/a@b.sock?db=1",
    "s3://bucket/a@b",
    "abfss://container@account.dfs.core.windows.net/x",
    "http://127.0.0.1:8080/x?y=1",
]


@pytest.mark.parametrize("url", HARMLESS)
def test_what_hides_nothing_is_left_as_it_is(url: str) -> None:
    """A URL without secrets is shown unchanged, alone and in a text."""
    assert without_password(url) == url
    text = f"'{url}' does not answer; write to a@b.example, ({url})."
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "a" * 400_000 + " @",
        "ab12" * 100_000 + " x://",
        "redis://" + "'" * 400_000 + " @",
        "redis://a:b " * 30_000 + "\n@",
    ],
    ids=["letters", "hex", "marks", "urls"],
)
def test_a_long_text_is_masked_in_linear_time(text: str) -> None:
    """Masking takes linear time for long words and many URLs."""
    assert without_secrets(text) == text.replace("a:b", "a:***")


@pytest.mark.parametrize(
    "text",
    [f"u:{SECRET}@h:1/0?db=1", f"password='{SECRET}'", f's3.secret-access-key="{SECRET}"'],
    ids=["bare", "quoted", "hyphens"],
)
def test_a_secret_without_a_scheme_is_hidden(text: str) -> None:
    """An account before a query, and a quoted password value, are masked without a scheme."""
    assert SECRET not in without_secrets(f"cannot connect: {text} (refused)")


@pytest.mark.parametrize("mark", "'\"<>()`")
@pytest.mark.parametrize("before", ["", "12345"])
def test_a_mark_that_ends_a_word_ends_no_password(mark: str, before: str) -> None:
    """A quotation mark or bracket before an @ is part of the password."""
    found = without_secrets(f"cannot reach redis://app:{before}{mark}{SECRET}@h:1/0: (no)")
    assert SECRET not in found
    assert found.endswith("@h:1/0: (no)")


def test_the_options_of_spark_show_no_url() -> None:
    """The repr of parsed Spark options leaves out the URL."""
    url = f"redis://app:{SECRET}@h:1/0"
    for found in (
        parse_read({"url": url, "stream": "s"}),
        parse_write({"url": url, "stream": "s"}),
        parse_hashes({"url": url, "hashes": "s:*"}),
    ):
        assert SECRET not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://{SECRET}@bucket/x",
        f"s3://AKIA:a/{SECRET}@bucket",
        f"s3://bucket/x?secret_access_key={SECRET}",
        f"gs://b#{SECRET}",
    ],
)
def test_an_object_store_takes_no_keys_in_its_url(url: str) -> None:
    """An archive URL with keys in it is refused without showing them."""
    with pytest.raises(ConfigError) as refused:
        ObjectStorage(url)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("url", [f"app:{SECRET}@h:1", f"redis://{SECRET}@h:x"])
def test_a_url_in_place_of_an_app_is_not_quoted(url: str) -> None:
    """``millstream run URL`` is refused without the URL's secret."""
    with pytest.raises(ConfigError) as refused:
        find_app(url)
    assert SECRET not in str(refused.value)


WORDS: list[tuple[str, ...]] = [
    ("doctor", "URL"),
    ("compare", "URL", "URL"),
    ("failover", "URL"),
    ("import", "URL", "redis://127.0.0.1:1"),
    ("export", "URL", "x"),
    ("backup", "URL", "x"),
    ("replicas", "URL"),
    ("console", "URL"),
    ("report", "URL"),
    ("context", "add", "x", "URL"),
    ("config", "show", "--url", "URL"),
    ("stream", "ls", "a", "b", "URL"),
    ("group", "ls", "URL", "URL", "URL"),
    ("URL",),
    ("serve", "--replica-of", "URL"),
    ("serve", "--port", "URL"),
    ("archive", "URL", "s", "--to", "URL"),
    ("recover", "URL"),
    ("replay", "URL", "URL"),
    ("add", "--url", "URL", "s"),
    ("dead", "ls", "URL", "URL"),
    ("audit", "ls", "URL"),
]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: "-".join(words[:2]))
@pytest.mark.parametrize("url", [f"app:{SECRET}@h:1", f"redis://app:a/{SECRET}@127.0.0.1:1/x", f"redis://{SECRET}@h:x"])
def test_no_command_prints_the_secret_of_its_words(
    words: tuple[str, ...], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of every command with a wrong URL contain no secret."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done: Any = CliRunner().invoke(main, [word.replace("URL", url) for word in words])
    assert SECRET not in done.output + done.stderr + repr(done.exception)
