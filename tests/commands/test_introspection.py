"""COMMAND's facts on commands newer than any redis-server that tests can count on: compared with 8.8 by hand."""

import pytest

from millstream.replies import Simple
from support.inprocess import World


@pytest.mark.parametrize("name", ["eval", "eval_ro", "evalsha", "evalsha_ro"])
def test_commands_that_run_scripts_say_so(name: str) -> None:
    """COMMAND INFO has the flag by which clients of 8.10 know a command that runs a script, behind all others."""
    (row,) = World().client(2).call("COMMAND", "INFO", name)
    assert row[2][-1] == Simple(b"script_runner")


@pytest.mark.parametrize("name", ["subscribe", "psubscribe"])
def test_subscribing_is_marked_as_taking_memory(name: str) -> None:
    """COMMAND INFO has denyoom for commands that make the server remember a listener."""
    (row,) = World().client(2).call("COMMAND", "INFO", name)
    assert row[2][0] == Simple(b"denyoom")


def test_acknowledging_and_deleting_updates_too() -> None:
    """XACKDEL's key is updated (the pending list) and deleted from, for GETKEYSANDFLAGS and for ACL selectors."""
    line = ["xackdel", "s", "g", "IDS", "1", "1-1"]
    (found,) = World().client(2).call("COMMAND", "GETKEYSANDFLAGS", *line)
    assert found == [b"s", [Simple(b"RW"), Simple(b"update"), Simple(b"delete")]]


def told(name: str) -> dict[bytes, dict[bytes, object]]:
    """A command's arguments as COMMAND DOCS tells them, by name."""
    docs = World().client(3).call("COMMAND", "DOCS", name)
    arguments = dict(dict(docs)[name.encode()])[b"arguments"]
    return {dict(argument)[b"name"]: dict(argument) for argument in arguments}


def test_trimming_takes_the_choice_of_references_last() -> None:
    """COMMAND DOCS has KEEPREF, DELREF and ACKED as the last part of XTRIM's block, without a version, as Redis has."""
    arguments = told("xtrim")
    assert list(arguments) == [b"key", b"trim"]
    parts = [dict(part) for part in arguments[b"trim"][b"arguments"]]  # type: ignore[attr-defined] # replies are untyped
    assert [part[b"name"] for part in parts] == [b"strategy", b"operator", b"threshold", b"count", b"condition"]
    assert b"since" not in parts[-1]


def test_versions_stand_beside_arguments_only_where_redis_has_them() -> None:
    """COMMAND DOCS: an argument whose version Redis has in the history only has none; the history has it."""
    adding = told("xadd")
    assert b"since" not in adding[b"condition"]
    assert adding[b"idmp"][b"since"] == b"8.6.0"
    docs = dict(dict(World().client(3).call("COMMAND", "DOCS", "xadd"))[b"xadd"])
    assert b"8.2.0" in [version for version, _ in docs[b"history"]]
