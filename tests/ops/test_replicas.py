"""The tree of primaries and replicas."""

from millstream.ops.server.replicas import AskedServer, addresses, standings
from millstream.ops.server.status import server_status


def primary(offset: int, *replicas: str) -> dict[str, str]:
    """Return INFO of a primary with replicas, given as ``host:port:offset``."""
    rows = {}
    for at, (ip, port, told) in enumerate(one.split(":") for one in replicas):
        rows[f"slave{at}"] = f"ip={ip},port={port},state=online,offset={told},lag=1"
    return {"role": "master", "master_replid": "a" * 40, "master_repl_offset": str(offset), **rows}


def replica(host: str, offset: int, **more: str) -> dict[str, str]:
    """Return INFO of a replica of ``host`` at port 1."""
    link = {"master_host": host, "master_port": "1", "master_link_status": "up", "slave_repl_offset": str(offset)}
    return {"role": "slave", "master_replid": "a" * 40, **link, **more}


def asked(address: str, info: dict[str, str] | None) -> AskedServer:
    """Build a queried server. One that did not answer has no INFO."""
    status = None if info is None else server_status(info, 0)
    return AskedServer(address, status, "" if info else "refused")


def test_a_tree_of_asked_and_unasked_servers() -> None:
    """Replicas are listed below their primary by the queried address.

    Servers not queried come from their primary's INFO.
    """
    servers = [
        asked("b:1", replica("10.0.0.1", 90, slave0="ip=10.0.0.4,port=1,state=online,offset=80,lag=0")),
        asked("a:1", primary(100, "10.0.0.2:1:70", "10.0.0.3:1:60")),
        asked("d:1", replica("10.0.0.2", 80, master_link_status="down", millstream_link_error="no route")),
    ]
    assert addresses(servers) == {"a:1", "b:1", "d:1", "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"}
    names = {"a:1": "10.0.0.1:1", "b:1": "10.0.0.2:1", "d:1": "10.0.0.4:1"}
    found = standings(servers, names)
    assert [(one.address, one.depth, one.role, one.behind_bytes) for one in found] == [
        ("a:1", 0, "primary", None),
        ("b:1", 1, "replica", 10),
        ("d:1", 2, "replica", 10),
        ("10.0.0.3:1", 1, "replica", 40),
    ]
    assert (found[2].link, found[2].problem) == ("down", "no route")
    assert found[3].problem == "not queried: give its URL too"


def test_silence_rings_and_primaries_that_know_nothing() -> None:
    """A server without an answer is a problem. Replicas that follow each other in a ring are shown once."""
    silent = standings([asked("a:1", None)], {})
    assert [(one.role, one.problem) for one in silent] == [(None, "does not answer: refused")]
    ring = standings([asked("a:1", replica("b", 1)), asked("b:1", replica("a", 1))], {})
    assert [one.address for one in ring] == ["a:1", "b:1"]
    said = "there is no primary: a:1, b:1 follow each other"
    assert [said in one.problem for one in ring] == [True, True]
    below = [
        *(asked(f"{one}:1", replica(other, 1)) for one, other in ("ab", "bc", "ca")),
        asked("d:1", replica("a", 1)),
    ]
    assert ["there is no primary: a:1, b:1, c:1" in one.problem for one in standings(below, {})] == [
        True,
        True,
        True,
        False,
    ]
    lost = standings([asked("a:1", primary(5)), asked("b:1", replica("a", 5))], {})
    assert [one.problem for one in lost] == ["", "its primary does not list it, though the link is up"]


def test_a_link_that_is_down_is_one_fault() -> None:
    """A broken link is one problem, not two. A silent replica is a problem even if it was not queried."""
    down = replica("a", 5, master_link_status="down", millstream_link_error="a command that is not known")
    cut = standings([asked("a:1", primary(5)), asked("b:1", down)], {})
    assert [one.problem for one in cut] == ["", "a command that is not known"]
    frozen = primary(5, "b:1:5")
    frozen["slave0"] = frozen["slave0"].replace("lag=1", "lag=22")
    said = "its primary has not heard from it for 22 s: it is blocked, or cannot be reached"
    unasked = standings([asked("a:1", frozen)], {})[1]
    assert (unasked.link, unasked.problem) == ("silent", f"{said}; not queried: give its URL too")
    both = standings([asked("a:1", frozen), asked("b:1", replica("a", 5))], {})[1]
    assert (both.link, both.problem) == ("silent", said)


def test_two_primaries_are_a_problem() -> None:
    """Two primaries are a problem for each. A primary with its replica is not."""
    two = standings([asked("a:1", primary(5)), asked("b:1", primary(5) | {"master_replid": "b" * 40})], {})
    assert [one.problem.partition(",")[0] for one in two] == ["b:1 leads too", "a:1 leads too"]
    pair = standings([asked("a:1", primary(5, "b:1:5")), asked("b:1", replica("a", 5))], {})
    assert [one.problem for one in pair] == ["", ""]


def test_a_primary_that_refuses_writes_says_so() -> None:
    """A primary that refuses writes for lack of replicas is a problem, by either setting."""
    sync = {"millstream_sync_asked": "1", "millstream_sync_confirming": "0"}
    for more, said in (
        (sync | {"millstream_sync_state": "refused"}, "writes are refused: sync-replicas 1, 0 confirm"),
        (sync | {"millstream_sync_state": "ok"}, ""),
        ({"min_slaves_good_slaves": "0"}, "writes are refused: min-replicas-to-write, 0 replicas heard from recently"),
    ):
        assert [one.problem for one in standings([asked("a:1", primary(5) | more)], {})] == [said]
