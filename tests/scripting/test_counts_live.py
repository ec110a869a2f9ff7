"""INFO counts failing scripts as a running redis-server does: each error once, and the script as failed."""

import re

import pytest

from conformance.pipe import Pipe
from support.inprocess import World, to_words
from support.servers import ServerProcess

SCRIPTS = (
    "return redis.call('AUTH', 'b', 'x')",
    "return redis.pcall('AUTH', 'b', 'x')",
    "return redis.call('nosuch')",
    "redis.pcall('nosuch') return 1",
    "return redis.call('get')",
    "redis.pcall('get') return redis.pcall('get')",
    "return redis.call('lpush', 'k', 'x')",
    "redis.pcall('lpush', 'k', 'x') return 1",
    "pcall(function() redis.call('get') end) return 1",
    "redis.pcall('get') redis.pcall('lpush', 'k', 'x') return redis.error_reply('Z z')",
    "redis.pcall('lpush', 'k', 'b') error('Q q')",
    "return redis.call()",
    "redis.pcall() return 1",
    "error('x')",
    "error({err = 'ABC d'})",
    "local reply = redis.pcall('get') error(reply)",
    "return redis.error_reply('MY x')",
    "return {redis.error_reply('MY x'), redis.error_reply('MY y'), 1}",
    "return redis.status_reply('fine')",
    "return x",
    "not lua (",
    "#!lua flags=no-writes\nredis.call('set', 'a', 'b')",
    "#!lua flags=bad\nreturn 1",
)


def counts(text: bytes) -> dict[str, object]:
    """Return the error counts and the refused and failed calls of each command from INFO's text."""
    found: dict[str, object] = dict(re.findall(r"(errorstat_\w+:count|total_error_replies)[=:](\d+)", text.decode()))
    row = r"cmdstat_(auth|eval|get|lpush):calls=\d+,.*,(rejected_calls=\d+,failed_calls=\d+)"
    return found | dict(re.findall(row, text.decode()))


@pytest.mark.realserver
@pytest.mark.parametrize("script", SCRIPTS)
def test_errors_of_scripts_are_counted_as_redis_does(each_redis: ServerProcess, script: str) -> None:
    """An error of a command in a script is counted once, and a script's own error when it leaves the script."""
    lines = [["SET", "k", "v"], ["CONFIG", "RESETSTAT"], ["EVAL", script, 0]]
    sections = ["stats", "errorstats", "commandstats"]
    pipe = Pipe(each_redis.port)
    try:
        theirs = pipe.ask([to_words(line) for line in lines] + [to_words(["INFO", *sections])])[-1]
    finally:
        pipe.close()
    client = World().client()
    for line in lines:
        client.call(*line)
    ours = client.call("INFO", *sections)
    assert isinstance(ours, bytes)
    assert isinstance(theirs, bytes)
    assert counts(ours) == counts(theirs)
