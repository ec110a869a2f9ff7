"""Each point of docs/compatibility.md's list of contradictions between Redis's documentation and server."""

import pytest

from millstream.replies import Error, Simple
from support.inprocess import World


@pytest.fixture
def client():
    """Return a client of a node with two groups on a stream of two entries, both pending with g1's anna."""
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
    """XAUTOCLAIM and XREADGROUP CLAIM take an entry whose idle time is exactly the minimum."""
    client.world.clock.advance(1000)
    by_read = ("XREADGROUP", "GROUP", "g1", "bert", "CLAIM", idle, "STREAMS", "s", ">")
    by_scan = ("XAUTOCLAIM", "s", "g1", "carl", idle, "0", "JUSTID")
    if command == "XAUTOCLAIM":
        assert client.call(*by_scan)[1] == claimed
    else:
        read = client.call(*by_read)
        assert [row[0] for row in (read[0][1] if isinstance(read, list) else [])] == claimed


def test_xackdel_replies_of_this_groups_pending_entries(client) -> None:
    """XACKDEL replies -1 for an entry that is not pending in this group, and keeps the records of other groups."""
    assert client.call("XACKDEL", "s", "g2", "DELREF", "IDS", 1, "1-1") == [-1]
    assert client.call("XPENDING", "s", "g1")[0] == 2
    client.call("XREADGROUP", "GROUP", "g2", "dora", "STREAMS", "s", ">")
    assert client.call("XACKDEL", "s", "g2", "DELREF", "IDS", 1, "1-1") == [1]
    assert client.call("XPENDING", "s", "g1")[0] == 1


def test_xdelex_acked_deletes_where_there_is_no_group(client) -> None:
    """XDELEX ACKED deletes an entry of a stream without groups."""
    client.call("XADD", "alone", "1-1", "a", "b")
    assert client.call("XDELEX", "alone", "ACKED", "IDS", 1, "1-1") == [1]
    assert client.call("XLEN", "alone") == 0


def test_the_choice_of_references_may_be_left_out(client) -> None:
    """XACKDEL and XDELEX without an option work as KEEPREF: the entry goes, other groups' records stay."""
    client.call("XREADGROUP", "GROUP", "g2", "dora", "STREAMS", "s", ">")
    assert client.call("XACKDEL", "s", "g1", "IDS", 1, "1-1") == [1]
    assert client.call("XDELEX", "s", "IDS", 1, "1-2") == [1]
    assert client.call("XPENDING", "s", "g2")[0] == 2


def test_xcfgset_forgets_producers_only_when_it_changes_a_value(client) -> None:
    """XCFGSET with the same values keeps the known duplicates, and with other values drops them."""
    add = ("XADD", "s", "IDMP", "p", "i", "*", "a", "b")
    first = client.call(*add)
    client.call("XCFGSET", "s", "IDMP-DURATION", 100)
    assert client.call(*add) == first
    client.call("XCFGSET", "s", "IDMP-DURATION", 200)
    assert client.call(*add) != first


def test_an_own_history_read_switches_claim_off_behind_it(client) -> None:
    """In XREADGROUP, CLAIM does not apply to streams after one that is read from an id."""
    client.call("XADD", "t", "1-1", "a", "b")
    client.call("XGROUP", "CREATE", "t", "g1", "0")
    client.call("XREADGROUP", "GROUP", "g1", "anna", "STREAMS", "t", ">")
    words = ("XREADGROUP", "GROUP", "g1", "bert", "CLAIM", 0, "STREAMS")
    assert client.call(*words, "s", "t", "0", ">") == [[b"s", []]]
    assert [stream for stream, _ in client.call(*words, "t", "s", ">", "0")] == [b"t", b"s"]


def test_xnack_takes_its_internal_options_from_anyone(client) -> None:
    """XNACK accepts the internal options RETRYCOUNT and FORCE from any client."""
    assert client.call("XNACK", "s", "g2", "SILENT", "IDS", 1, "1-1", "RETRYCOUNT", 7, "FORCE") == 1
    assert client.call("XPENDING", "s", "g2", "-", "+", 10) == [[b"1-1", b"", -1, 7]]


def test_maxsize_sends_the_entry_that_passes_it(client) -> None:
    """XREADGROUP MAXSIZE sends the entry that exceeds the limit, so the first one always comes."""
    read = client.call("XREADGROUP", "GROUP", "g2", "dora", "MAXSIZE", 1, "STREAMS", "s", ">")
    assert [row[0] for row in read[0][1]] == [b"1-1"]


def test_xcfgset_says_what_it_wants(client) -> None:
    """XCFGSET's errors name the allowed range, unlike the ones on Redis's page."""
    duration = client.call("XCFGSET", "s", "IDMP-DURATION", 0)
    assert duration == Error("ERR IDMP-DURATION must be between 1 and 86400 seconds")
    size = client.call("XCFGSET", "s", "IDMP-MAXSIZE", 10001)
    assert size == Error("ERR IDMP-MAXSIZE must be between 1 and 10000 entries")


def test_xidmprecord_takes_a_message_it_did_not_know(client) -> None:
    """XIDMPRECORD records an unknown message as a duplicate, and refuses another entry for it."""
    assert client.call("XIDMPRECORD", "s", "p", "i", "1-1") == Simple(b"OK")
    assert client.call("XADD", "s", "IDMP", "p", "i", "*", "a", "b") == b"1-1"
    refused = client.call("XIDMPRECORD", "s", "p", "i", "1-2")
    assert refused == Error("ERR IID already exists for this producer with a different stream ID")
