"""The memory of scripts is released: after a failed one, and when the runtime is dropped."""

import gc
import warnings

import pytest

from millstream.node.scripting import scripts
from support.inprocess import Client, World

FILL = "local t = {{}} for i = 1, {} do t[i] = ('x'):rep(1000000 + i) end {}"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return a client of a node whose scripts have little memory and no time limit."""
    monkeypatch.setattr(scripts, "MEMORY", 32 * 1024 * 1024)
    return World({"busy-reply-threshold": "0"}).client()


def runtimes() -> int:
    """Return the number of Lua runtimes in this process, including those in reference cycles."""
    return sum(type(found).__name__ == "LuaRuntime" for found in gc.get_objects())


def test_a_runtime_given_up_goes_at_once(client: Client) -> None:
    """A runtime dropped after a memory error or SCRIPT FLUSH is freed at once, without Python's collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # garbage of other tests in this process is not this one's
        gc.collect()
    before = runtimes()
    gc.disable()
    try:
        for _ in range(2):
            assert "not enough memory" in str(client.call("EVAL", FILL.format(10**9, ""), "0"))
        for _ in range(3):
            assert client.call("EVAL", "return 1", "0") == 1
            client.call("SCRIPT", "FLUSH")
        assert runtimes() == before
    finally:
        gc.enable()


def test_what_a_failed_script_held_is_not_taken_from_the_next(client: Client) -> None:
    """The memory of a failed script is released before the next one."""
    assert "user_script:1: x" in str(client.call("EVAL", FILL.format(29, "error('x')"), "0"))
    info = client.call("INFO", "memory")
    assert isinstance(info, bytes)
    lines = dict(line.split(b":") for line in info.splitlines() if b":" in line)
    assert int(lines[b"used_memory_lua"]) < scripts.MEMORY // 4


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (12_000_000, "'SET', 'k', V"),
        (4_000_000, "'XADD', 's', '*', V, V, V, V"),
        (200_000, "'XADD', 's', '*', unpack(many)"),
    ],
)
def test_large_words_need_no_more_memory_than_they_have(client: Client, size: int, words: str) -> None:
    """Large arguments reach a command even if Lua has no memory for another copy of them."""
    script = f"local V, many = ARGV[1], {{}} for at = 1, 190 do many[at] = V end redis.call({words}) return 'done'"
    assert client.call("EVAL", script, 0, b"x" * size) == b"done"
