"""INFO counts commands as a running redis-server does, also those that reset the counts or run other commands."""

import re

import pytest

from conformance.pipe import Pipe
from support.inprocess import World, to_words
from support.servers import ServerProcess

LINES = (
    ("PING", "GET k"),
    ("MULTI", "GET k", "SET k 1", "EXEC"),
    ("MULTI", "GET k", "LPUSH k x", "EXEC"),
    ("MULTI", "SET k 1", "NOSUCH", "EXEC"),
    ("MULTI", "GET k", "CONFIG RESETSTAT", "GET k", "EXEC"),
    ("WATCH k", "SET k 2", "MULTI", "GET k", "EXEC"),
    ("MULTI", "GET k", "DISCARD"),
    ("EXEC",),
    ("EVAL redis.call('GET','k') 0",),
    ("MULTI", "EVAL redis.call('GET','k') 0", "EXEC"),
    ("GET k", "CONFIG RESETSTAT"),
    ("INFO commandstats", "INFO"),
    ("MULTI", "INFO commandstats", "EXEC"),
)


@pytest.mark.realserver
@pytest.mark.parametrize("lines", LINES)
def test_commands_are_counted_as_redis_does(each_redis: ServerProcess, lines: tuple[str, ...]) -> None:
    """A command is counted when it ends: INFO does not count itself, and CONFIG RESETSTAT does."""
    words = [to_words(line.split(" ")) for line in ("SET k v", "CONFIG RESETSTAT", *lines, "INFO stats commandstats")]
    pipe = Pipe(each_redis.as_new().port)
    try:
        theirs = pipe.ask(words)[-1]
    finally:
        pipe.close()
    client = World().client()
    ours = [client.call(*each) for each in words][-1]
    assert isinstance(theirs, bytes)
    assert isinstance(ours, bytes)
    found, wanted = (
        sorted(re.findall(r"cmdstat_(\S+):calls=(\d+),|total_commands_processed:(\d+)", text.decode()))
        for text in (ours, theirs)
    )
    assert found == wanted
