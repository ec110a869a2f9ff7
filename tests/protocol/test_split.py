"""The splitter takes no command before it is complete."""

import pytest

from millstream.protocol.split import Splitter
from support.wire import pack


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_command_that_is_not_complete_is_not_taken(cut: int) -> None:
    """An incomplete command is not taken, wherever the bytes end."""
    command = pack("XADD", "s", "*", "f", "v")
    splitter = Splitter(command * 3 + command[:-cut])
    for _ in range(3):
        assert splitter.next() == [b"XADD", b"s", b"*", b"f", b"v"]
    assert splitter.at == 3 * len(command)
    assert splitter.next() is None
