"""The routes of a cluster, without a cluster: the node of a key, and the effect of each error reply."""

import pytest

from millstream.client.routes import Redirection, Routes
from millstream.client.slots import slot_of

URL = "redis+cluster://a:1,b:2"
SLOT = slot_of("k")


def routes() -> Routes:
    """Return routes with all slots on one node, as the node reports."""
    made = Routes(URL)
    made.learn([[0, 16_383, [b"", 7, b"id"]]], ("a", 1))
    return made


def test_nodes_are_asked_until_one_tells() -> None:
    """Nodes of the URL and then seen ones are asked. A cluster without slots is asked again."""
    made = Routes(URL)
    assert (made.known, made.candidates) == (False, [("a", 1), ("b", 2)])
    made.learn([], ("a", 1))
    assert not made.known
    made.learn([[0, 16_383, [b"c", 3, b"id"], [b"d", 4, b"id"]]], ("a", 1))
    assert (made.known, made.candidates) == (True, [("c", 3), ("a", 1), ("b", 2)])
    made.forget()
    assert (made.known, made.candidates) == (False, [("c", 3), ("a", 1), ("b", 2)])


def test_an_empty_host_is_the_node_that_was_asked() -> None:
    """A node with an empty host name in its reply is the node that was asked."""
    assert routes().of("k") == ("a", 7)


def test_a_slot_of_nobody_has_the_cluster_asked_again() -> None:
    """A slot without an owner has the cluster asked again."""
    made = Routes(URL)
    made.learn([[SLOT + 1, 16_383, [b"c", 3, b"id"]]], ("a", 1))
    assert (made.of("k"), made.known) == (None, False)


@pytest.mark.parametrize(
    ("code", "rest", "found", "node", "known"),
    [
        ("MOVED", f"{SLOT} c:3", Redirection(), ("c", 3), True),
        ("MOVED", f"{SLOT} ::1:3", Redirection(), ("::1", 3), True),
        ("MOVED", f"{SLOT} :3", Redirection(), ("a", 7), False),
        ("ASK", f"{SLOT} c:3", Redirection(("c", 3)), ("a", 7), True),
        ("TRYAGAIN", "Multiple keys request during rehashing of slot", Redirection(), ("a", 7), True),
        ("CLUSTERDOWN", "The cluster is down", Redirection(), ("a", 7), False),
        ("MOVED", "x c:y", Redirection(), ("a", 7), False),
        ("MOVED", "", Redirection(), ("a", 7), False),
        ("ERR", f"{SLOT} c:3", None, ("a", 7), True),
        ("", "", None, ("a", 7), True),
    ],
)
def test_an_error_reply_changes_the_routes(
    code: str, rest: str, found: Redirection | None, node: tuple[str, int], known: bool
) -> None:
    """An error reply moves a slot's route or has the cluster asked again, for any bytes."""
    made = routes()
    assert (made.heed(code, rest), made.of("k"), made.known) == (found, node, known)


def test_what_a_node_says_replaces_what_was_moved() -> None:
    """A node's newer report replaces an earlier moved slot."""
    made = routes()
    made.heed("MOVED", f"{SLOT} c:3")
    made.learn([[0, 16_383, [b"d", 4, b"id"]]], ("a", 1))
    assert made.of("k") == ("d", 4)
