"""``stream rename`` on redis-server and Millstream."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from millstream.client.delays import due
from millstream.client.line import Line
from millstream.errors import UsageError
from millstream.ops.audit import Actor
from millstream.ops.making import carry_out
from millstream.ops.plan import ChangeRefusedError
from support.changes import planned

pytestmark = pytest.mark.realserver

Look = Callable[[Callable[[Line], Awaitable[Any]]], Any]


def rename(look: Look, old: str, new: str, **texts: str) -> Any:
    """Rename a stream; return the plan and the outcome."""
    prepared = look(lambda line: planned(line, "stream rename", old, name=new, **texts))
    return prepared.plan, look(lambda line: carry_out(line, prepared, Actor("alice", "here"), "c1"))


def test_a_stream_is_renamed_with_its_groups_and_back(look: Look, client: redis.Redis) -> None:
    """``stream rename`` keeps entries, groups, pending entries and due times. It replaces a stream only on request."""
    for number in range(1, 4):
        client.xadd("orders", {"n": number}, id=f"{number}-0")
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", "web", {"orders": ">"}, count=2)
    client.zadd(due.key("orders", "billing"), {"1-0": 5})
    before = client.xinfo_groups("orders")
    plan, outcome = rename(look, "orders", "archive")
    assert (outcome.whole, len(outcome.audit), client.exists("orders")) == (True, 1, 0)
    assert plan.words == ("millstream", "stream", "rename", "orders", "archive")
    assert (client.xlen("archive"), client.xinfo_groups("archive")) == (3, before)
    assert client.zscore(due.key("archive", "billing"), "1-0") == 5
    _, outcome = rename(look, *plan.undo.words[3:])
    assert (outcome.whole, client.xinfo_groups("orders"), client.exists("archive")) == (True, before, 0)

    client.xadd("taken", {"n": 9}, id="9-0")
    with pytest.raises(ChangeRefusedError, match="there is a stream 'taken' already"):
        rename(look, "orders", "taken")
    with pytest.raises(UsageError, match="already"):
        rename(look, "orders", "orders")
    prepared = look(lambda line: planned(line, "stream rename", "orders", name="taken", replace="1"))
    client.xadd("taken", {"n": 10}, id="10-0")  # it is not the previewed stream
    outcome = look(lambda line: carry_out(line, prepared, Actor("alice", "here"), "c1"))
    assert ([each.became for each in outcome.results], client.xlen("taken")) == (["moved"], 2)
    plan, outcome = rename(look, "orders", "taken", replace="1")
    assert (outcome.whole, client.xinfo_groups("taken"), client.exists("orders")) == (True, before, 0)
    assert "cannot be restored" in plan.undo.note
    assert plan.words[-1] == "--replace"
