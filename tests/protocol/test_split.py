"""The splitter: commands that begin alike are taken together just as one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.protocol.split import WINDOW, Splitter
from support.wire import pack

words = st.sampled_from([b"XADD", b"s", b"t", b"*", b"", b"value", b"\r\n", b"x" * 1100])


@given(st.lists(st.lists(words, min_size=3, max_size=5), min_size=1, max_size=8), st.integers(0, 3), st.integers(0, 9))
def test_commands_that_begin_alike_are_taken_together(commands: list[list[bytes]], first: int, most: int) -> None:
    """Their words and their bytes, no more than may be, all that are cut together, and the next command is the next."""
    data = b"".join(pack(*command) for command in commands)
    together, singly = Splitter(data), Splitter(data)
    head = together.next()
    assert head == singly.next()
    if head is None:
        return
    assert together.rest(first) == rest(head, first)
    taken, rests = together.alike(first, most)
    for found, written in zip(taken, rests, strict=True):
        command = singly.next()
        assert command == head[:first] + found
        assert written == rest(command, first)
    assert together.at == singly.at
    following = singly.next()
    assert following == together.next()
    if following is not None and len(taken) < most and len(data) <= WINDOW:
        assert (len(following), following[:first]) != (len(head), head[:first])


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_command_that_is_not_complete_is_not_taken(cut: int) -> None:
    """Wherever the bytes end."""
    command = pack("XADD", "s", "*", "f", "v")
    splitter = Splitter(command * 3 + command[:-cut])
    assert splitter.next() == [b"XADD", b"s", b"*", b"f", b"v"]
    assert splitter.alike(3, 99)[0] == [[b"f", b"v"]] * 2
    assert splitter.at == 3 * len(command)
    assert splitter.next() is None


def rest(command: list[bytes], first: int) -> bytes:
    """Words as they are written, without the last line end."""
    return pack(*command[first:]).partition(b"\r\n")[2][:-2]
