"""Kept rights need little memory and little work, however many streams there are and however long their names are."""

import pytest

from millstream.commands.users.accounts import Accounts
from millstream.engine.keyspace import Keyspace
from millstream.engine.streams.stream import Stream
from millstream.node import plain_rights
from millstream.node.plain import NAMES
from millstream.node.plain_rights import LONGEST, PlainRights
from support.plain import needs_runner

pytestmark = needs_runner


def known(rights: PlainRights, *users: bytes) -> dict[bytes, list[str]]:
    """Return the commands that are known to be allowed by stream, of all these users."""
    found = {key: bits for user in users for key, bits in (rights.of(user) or {}).items()}
    return {key: [name for at, name in enumerate(NAMES) if bits >> at & 1] for key, bits in found.items()}


def made(*users: bytes, streams: int = 1) -> tuple[PlainRights, Keyspace]:
    """Return the rights of users who may add to any stream, and a keyspace."""
    accounts, space = Accounts(), Keyspace()
    for user in users:
        accounts.set(user, [b"on", b"nopass", b"+xadd", b"~*"])
    space.databases[0].keys.update({b"s%d" % number: Stream(100, 100) for number in range(streams)})
    return PlainRights(accounts), space


def test_the_rights_for_one_command_are_worked_out_at_a_time() -> None:
    """A stream that is used once costs the check of one command, also if the user may not run that."""
    rights, space = made(b"u")
    rights.learn(b"u", space.databases[0], [b"XLEN", b"s0"])
    assert known(rights, b"u") == {b"s0": []}
    rights.learn(b"u", space.databases[0], [b"xAdd", b"s0", b"*", b"f", b"v"])
    rights.learn(b"u", space.databases[0], [b"XREAD", b"STREAMS", b"s0", b"0"])
    assert known(rights, b"u") == {b"s0": ["xadd"]}


def test_long_names_of_streams_are_not_kept() -> None:
    """A stream that is gone leaves no long name behind, since a name may have megabytes and nothing counts them."""
    rights, space = made(b"u")
    for key in (b"k" * LONGEST, b"k" * (LONGEST + 1), b"k" * 1_000_000):
        space.databases[0].keys[key] = Stream(100, 100)
        rights.learn(b"u", space.databases[0], [b"XADD", key, b"*", b"f", b"v"])
    assert known(rights, b"u") == {b"k" * LONGEST: ["xadd"]}


@pytest.mark.parametrize("words", [[b"XADD"], [b"DEL", b"s0"], [b"GET", b"s0"], [b"XREAD", b"s0"], [b"\xff", b"s0"]])
def test_other_commands_teach_nothing(words: list[bytes]) -> None:
    """A command without a plain form on a stream, or without its words, leaves no row."""
    rights, space = made(b"u")
    rights.learn(b"u", space.databases[0], words)
    assert known(rights, b"u") == {}


def test_all_users_together_keep_a_limited_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of streams of all users the rights are worked out anew."""
    monkeypatch.setattr(plain_rights, "MOST", 10)
    rights, space = made(b"u", b"v", streams=9)
    for number in range(9):
        for user in (b"u", b"v"):
            rights.learn(user, space.databases[0], [b"XADD", b"s%d" % number, b"*", b"f", b"v"])
            assert sum(len(rights.of(each) or {}) for each in (b"u", b"v")) <= 10
            assert known(rights, user)[b"s%d" % number] == ["xadd"]
