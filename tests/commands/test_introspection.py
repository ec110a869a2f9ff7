"""COMMAND's facts on commands newer than the redis-server of the tests, compared with 8.8 by hand."""

import pytest

from millstream.replies import Simple
from support.inprocess import World


@pytest.mark.parametrize("name", ["eval", "eval_ro", "evalsha", "evalsha_ro"])
def test_commands_that_run_scripts_say_so(name: str) -> None:
    """COMMAND INFO of a script command has, as its last flag, the one by which clients of 8.10 detect such commands."""
    (row,) = World().client(2).call("COMMAND", "INFO", name)
    assert row[2][-1] == Simple(b"script_runner")


@pytest.mark.parametrize("name", ["subscribe", "psubscribe"])
def test_subscribing_is_marked_as_taking_memory(name: str) -> None:
    """COMMAND INFO has the flag denyoom for commands that subscribe, since each subscription takes memory."""
    (row,) = World().client(2).call("COMMAND", "INFO", name)
    assert row[2][0] == Simple(b"denyoom")


def test_acknowledging_and_deleting_updates_too() -> None:
    """XACKDEL's key has the flags update (of the pending list) and delete, in GETKEYSANDFLAGS and for ACLs."""
    line = ["xackdel", "s", "g", "IDS", "1", "1-1"]
    (found,) = World().client(2).call("COMMAND", "GETKEYSANDFLAGS", *line)
    assert found == [b"s", [Simple(b"RW"), Simple(b"update"), Simple(b"delete")]]


def told(name: str) -> dict[bytes, dict[bytes, object]]:
    """Return a command's arguments from COMMAND DOCS, by name."""
    docs = World().client(3).call("COMMAND", "DOCS", name)
    arguments = dict(dict(docs)[name.encode()])[b"arguments"]
    return {dict(argument)[b"name"]: dict(argument) for argument in arguments}


def test_trimming_takes_the_choice_of_references_last() -> None:
    """COMMAND DOCS lists KEEPREF, DELREF and ACKED last in XTRIM's block, without a version, as Redis does."""
    arguments = told("xtrim")
    assert list(arguments) == [b"key", b"trim"]
    parts = [dict(part) for part in arguments[b"trim"][b"arguments"]]  # type: ignore[attr-defined] # replies are untyped
    assert [part[b"name"] for part in parts] == [b"strategy", b"operator", b"threshold", b"count", b"condition"]
    assert b"since" not in parts[-1]


def test_versions_stand_beside_arguments_only_where_redis_has_them() -> None:
    """An argument that has its version only in Redis's history has it only there in COMMAND DOCS too."""
    adding = told("xadd")
    assert b"since" not in adding[b"condition"]
    assert adding[b"idmp"][b"since"] == b"8.6.0"
    docs = dict(dict(World().client(3).call("COMMAND", "DOCS", "xadd"))[b"xadd"])
    assert b"8.2.0" in [version for version, _ in docs[b"history"]]
