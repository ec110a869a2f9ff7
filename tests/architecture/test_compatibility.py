"""Each point of docs/compatibility.md's list, where Redis's documentation and its server disagree, is true of ours."""

import pytest

from millstream.replies import Error, Simple
from support.inprocess import World


@pytest.fixture
def client():
    """A client of a node in this process, with two groups on a stream of two entries, both delivered to g1's anna."""
    found = World().client()
    for entry in ("1-1", "1-2"):
        found.call("XADD", "s", entry, "a", "b")
    for group in ("g1", "g2"):
        found.call("XGROUP", "CREATE", "s", group, "0")
    found.call("XREADGROUP", "GROUP", "g1", "anna", "STREAMS", "s", ">")
    return found


@pytest.mark.parametrize("command", ["XREADGROUP", "XAUTOCLAIM"])
@pytest.mark.parametrize(("idle", "claimed"), [(1000, [b"1-1", b"1-2"]), (1001, [])])
def test_claims_take_an_entry_at_exactly_the_minimum(client, command: str, idle: int, claimed: list[bytes]) -> None:
    """An entry that has been idle for the minimum to the millisecond is claimed by both commands."""
    client.world.clock.advance(1000)
    by_read = ("XREADGROUP", "GROUP", "g1", "bert", "CLAIM", idle, "STREAMS", "s", ">")
    by_scan = ("XAUTOCLAIM", "s", "g1", "carl", idle, "0", "JUSTID")
    if command == "XAUTOCLAIM":
        assert client.call(*by_scan)[1] == claimed
    else:
        read = client.call(*by_read)
        assert [row[0] for row in (read[0][1] if isinstance(read, list) else [])] == claimed


def test_xackdel_replies_of_this_groups_pending_entries(client) -> None:
    """-1 means "not pending in this group", whatever the stream has; another group's record stays then."""
    assert client.call("XACKDEL", "s", "g2", "DELREF", "IDS", 1, "1-1") == [-1]
    assert client.call("XPENDING", "s", "g1")[0] == 2
    client.call("XREADGROUP", "GROUP", "g2", "dora", "STREAMS", "s", ">")
    assert client.call("XACKDEL", "s", "g2", "DELREF", "IDS", 1, "1-1") == [1]
    assert client.call("XPENDING", "s", "g1")[0] == 1


def test_xdelex_acked_deletes_where_there_is_no_group(client) -> None:
    """No group can still want the entry."""
    client.call("XADD", "alone", "1-1", "a", "b")
    assert client.call("XDELEX", "alone", "ACKED", "IDS", 1, "1-1") == [1]
    assert client.call("XLEN", "alone") == 0


def test_the_choice_of_references_may_be_left_out(client) -> None:
    """KEEPREF is meant: the entry goes, the other group's record stays."""
    client.call("XREADGROUP", "GROUP", "g2", "dora", "STREAMS", "s", ">")
    assert client.call("XACKDEL", "s", "g1", "IDS", 1, "1-1") == [1]
    assert client.call("XDELEX", "s", "IDS", 1, "1-2") == [1]
    assert client.call("XPENDING", "s", "g2")[0] == 2


def test_xcfgset_forgets_producers_only_when_it_changes_a_value(client) -> None:
    """The same settings again leave the duplicates known; other settings do not."""
    add = ("XADD", "s", "IDMP", "p", "i", "*", "a", "b")
    first = client.call(*add)
    client.call("XCFGSET", "s", "IDMP-DURATION", 100)
    assert client.call(*add) == first
    client.call("XCFGSET", "s", "IDMP-DURATION", 200)
    assert client.call(*add) != first


def test_an_own_history_read_switches_claim_off_behind_it(client) -> None:
    """Streams named after one that is read from an id are read without CLAIM."""
    client.call("XADD", "t", "1-1", "a", "b")
    client.call("XGROUP", "CREATE", "t", "g1", "0")
    client.call("XREADGROUP", "GROUP", "g1", "anna", "STREAMS", "t", ">")
    words = ("XREADGROUP", "GROUP", "g1", "bert", "CLAIM", 0, "STREAMS")
    assert client.call(*words, "s", "t", "0", ">") == [[b"s", []]]
    assert [stream for stream, _ in client.call(*words, "t", "s", ">", "0")] == [b"t", b"s"]


def test_xnack_takes_its_internal_options_from_anyone(client) -> None:
    """RETRYCOUNT sets the counter; FORCE makes a record that was not there."""
    assert client.call("XNACK", "s", "g2", "SILENT", "IDS", 1, "1-1", "RETRYCOUNT", 7, "FORCE") == 1
    assert client.call("XPENDING", "s", "g2", "-", "+", 10) == [[b"1-1", b"", -1, 7]]


def test_maxsize_sends_the_entry_that_passes_it(client) -> None:
    """A limit below one entry's size still lets the first through."""
    read = client.call("XREADGROUP", "GROUP", "g2", "dora", "MAXSIZE", 1, "STREAMS", "s", ">")
    assert [row[0] for row in read[0][1]] == [b"1-1"]


def test_xcfgset_says_what_it_wants(client) -> None:
    """Its page has "invalid duration" and "invalid maxsize"."""
    duration = client.call("XCFGSET", "s", "IDMP-DURATION", 0)
    assert duration == Error("ERR IDMP-DURATION must be between 1 and 86400 seconds")
    size = client.call("XCFGSET", "s", "IDMP-MAXSIZE", 10001)
    assert size == Error("ERR IDMP-MAXSIZE must be between 1 and 10000 entries")


def test_xidmprecord_takes_a_message_it_did_not_know(client) -> None:
    """OK, and from then on the message is a duplicate; another entry for it is refused."""
    assert client.call("XIDMPRECORD", "s", "p", "i", "1-1") == Simple(b"OK")
    assert client.call("XADD", "s", "IDMP", "p", "i", "*", "a", "b") == b"1-1"
    refused = client.call("XIDMPRECORD", "s", "p", "i", "1-2")
    assert refused == Error("ERR IID already exists for this producer with a different stream ID")
