"""Wrong arguments of an app's calls: each is one error that names the call and says what to write."""

import sqlite3
from typing import Any

import pytest

from millstream import App, Limit, StreamSub, outbox
from millstream.errors import UsageError


def take(n: int) -> None: ...


NEVER: dict[str, Any] = {"every": 5, "content": {"a": 1}}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda app: app.publish("s", {"a": 1}, replace="no"), r"publish\(replace='no'\) is invalid: it must be True"),
        (lambda app: app.publish(None, {"a": 1}, delay=1), r"publish\(stream=None\) is invalid.* Write stream="),
        (lambda app: app.publish(b"s", {"a": 1}), r"publish\(stream=b's'\) is invalid.* Write stream="),
        (lambda app: app.publish("s", {"a": 1}, delay="-5m"), r"publish\(delay='-5m'\) is invalid: it must be a"),
        (lambda app: app.publish_batch("s", [{"a": 1}], id="x"), r"publish_batch\(id='x'\) is invalid.* Write lambda"),
        (
            lambda app: app.publish_batch("s", [{"a": 1}], key="k"),
            r"publish_batch\(key='k'\) is invalid.* Write lambda",
        ),
        (lambda app: app.publish_batch(b"s", []), r"publish_batch\(stream=b's'\) is invalid"),
        (lambda app: app.request("s", {"a": 1}, timeout="367d"), r"request\(timeout='367d'\) is invalid: .* 365 days"),
        (lambda app: anext(app.later.list("s", limit="a")), r"list\(limit='a'\) is invalid: it must be a number"),
        (lambda app: app.schedules.put("n", every=5, stream="", content={"a": 1}), r"put\(stream=''\) is invalid"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_a_wrong_argument_is_one_error(call: Any, text: str) -> None:
    """A wrong argument of a call that reaches the server is one error."""
    async with App("memory://wrong-calls") as app:
        with pytest.raises(UsageError, match=text):
            await call(app)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda app: app.job("s", 3), r"job\('s', 3\) is invalid: it takes an entry's id"),
        (lambda app: app.publish_sync(b"s", {"a": 1}), r"publish_sync\(stream=b's'\) is invalid"),
        (lambda app: app.schedule(**{**NEVER, "every": 0.5}, stream="s"), r"every=0.5 is invalid: .* Write every=1\."),
        (lambda app: app.schedule(**NEVER, stream="s", catch_up="some"), "Write catch_up='latest' or 'none' or 'all'"),
        (lambda app: app.schedule(**NEVER, stream="s", key=float("nan")), r"\(key=nan\) is invalid: a key is text"),
        (lambda app: app.schedule(**NEVER, stream=""), r"schedule\(stream=''\) is invalid: .* Write stream="),
        (lambda app: app.schedule(every=5, name="")(take), r"schedule\(name=''\) is invalid: it must be a text"),
        (lambda app: Limit("1/s", burst=0), r"Limit\(burst=0\) is invalid: it must be a whole number.* Write burst=20"),
        (lambda app: app.subscriber(StreamSub("s", group="g"), hold="yes")(take), r"subscriber\(hold='yes'\) is inval"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_wrong_declaration_is_one_error(call: Any, text: str) -> None:
    """A wrong argument of a declaration is one error at the import."""
    with pytest.raises(UsageError, match=text):
        call(App("memory://wrong-calls"))


@pytest.mark.parametrize(("key", "stored"), [("a", "a"), (b"a", "a"), (7, "7"), (0.5, "0.5"), (None, None)])
def test_an_outbox_takes_the_keys_of_publish(key: Any, stored: str | None) -> None:
    """A row of an outbox keeps the text of any key that ``publish`` takes."""
    assert outbox.insert("s", {"a": 1}, key=key).compile().params["entry_key"] == stored


@pytest.mark.parametrize("key", [b"\xff", True, float("nan"), []])
def test_an_outbox_refuses_other_keys(key: Any) -> None:
    """A key that a column of text cannot hold is one error, before any row is inserted."""
    with sqlite3.connect(":memory:") as connection, pytest.raises(UsageError, match=r"\(key=.*is invalid"):
        outbox.add(connection, "s", {"a": 1}, key=key)
