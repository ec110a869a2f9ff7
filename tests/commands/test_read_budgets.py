"""MAXCOUNT and MAXSIZE of XREAD and XREADGROUP, checked against a second implementation of the rule, in reply bytes.

The rule: before each stream and before each entry, stop when MAXCOUNT entries were given. Also stop when at least one
was and the reply so far, without its outermost header, has MAXSIZE bytes or more. A stream that is not begun is not
looked at. Compared by hand with Redis of June 2026 to which the published change was added: see docs/compatibility.md.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.protocol.encoder import encode
from millstream.replies import Error
from support.inprocess import Client, World

STREAMS = ("s", "t", "u")


def size_of(reply: Any, resp: int) -> int:
    """Return the size of a reply on the wire, in bytes."""
    return sum(len(buffer) for buffer in encode(reply, resp))


def streams_of(reply: Any) -> list[tuple[bytes, list[Any]]]:
    """Return the key and entries of each stream, for either protocol."""
    if reply is None:
        return []
    return [(pair[0], list(pair[1])) for pair in (reply.items() if isinstance(reply, dict) else reply)]


def budgeted(whole: Any, resp: int, count: int | None, size: int | None) -> list[tuple[bytes, list[Any]]]:
    """Return the part of an unlimited reply that the budget allows."""
    left: list[tuple[bytes, list[Any]]] = []
    written = given = 0

    def is_full() -> bool:
        return (count is not None and given >= count) or (size is not None and given > 0 and written >= size)

    for key, entries in streams_of(whole):
        if is_full():
            break
        written += size_of(key, resp) + (len(b"*2\r\n") if resp == 2 else 0)
        kept: list[Any] = []
        for entry in entries:
            if is_full():
                break
            written += size_of(entry, resp)
            given += 1
            kept.append(entry)
        written += len(b"*%d\r\n" % len(kept))
        left.append((key, kept))
    return left


def filled(rng: random.Random, resp: int) -> Client:
    """Return a client with three streams of entries of many sizes, each with a group and some idle deliveries."""
    client = World().client(resp)
    for key in STREAMS:
        for number in range(1, rng.choice([1, 3, 12]) + 1):
            pairs = [("f" * rng.randint(1, 12), "v" * rng.choice([0, 3, 9, 10, 99, 100, 300])) for _ in range(2)]
            client.call("XADD", key, f"{number}-1", *[word for pair in pairs for word in pair])
        client.call("XGROUP", "CREATE", key, "g", "0")
        client.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", key, ">")
        client.call("XCLAIM", key, "g", "c", 0, "1-1", "2-1", "IDLE", 500_000, "JUSTID")
    return client


LINES: dict[str, list[Any]] = {
    "read": ["XREAD"],
    "new": ["XREADGROUP", "GROUP", "g", "d"],
    "claim": ["XREADGROUP", "GROUP", "g", "d", "CLAIM", 1000],
    "history": ["XREADGROUP", "GROUP", "g", "c"],
}
IDS = {"read": "0", "new": ">", "claim": ">", "history": "0"}


def budgets() -> Iterator[tuple[int | None, int | None]]:
    """Return pairs of MAXCOUNT and MAXSIZE: tiny, huge, alone and together."""
    yield from ((count, None) for count in (1, 2, 3, 5, 2**63 - 1))
    yield from ((None, size) for size in (1, 20, 40, 64, 100, 101, 150, 400, 1000, 5000, 2**63 - 1))
    yield from ((count, size) for count in (1, 4) for size in (30, 200))


@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize("kind", LINES)
def test_a_budget_leaves_the_longest_beginning_that_it_allows(kind: str, resp: int) -> None:
    """A reply within a budget is the longest allowed beginning of the full reply, in both protocols.

    That holds for new entries, history and claims of several streams.
    """
    for seed in range(4):
        for count, size in budgets():
            words = [*LINES[kind], "STREAMS", *STREAMS, *[IDS[kind]] * len(STREAMS)]
            whole = filled(random.Random(seed), resp).call(*words)
            options = [*(["MAXCOUNT", count] if count else []), *(["MAXSIZE", size] if size else [])]
            client = filled(random.Random(seed), resp)
            reply = client.call(*LINES[kind], *options, *words[len(LINES[kind]) :])
            assert streams_of(reply) == budgeted(whole, resp, count, size), (seed, count, size)


def test_what_a_budget_left_out_is_not_delivered() -> None:
    """An entry that the budget left out is not delivered, and stays new for the group.

    A stream after the budget's end gets no consumer.
    """
    client = filled(random.Random(3), 2)
    for number in (98, 99):
        client.call("XADD", "s", f"{number}-1", "f", "v")
    pending = client.call("XPENDING", "s", "g")[0]
    reply = client.call(*["XREADGROUP", "GROUP", "g", "new", "MAXCOUNT", "1", "STREAMS", "s", "t", ">", ">"])
    assert [(key, len(entries)) for key, entries in reply] == [(b"s", 1)]
    assert client.call("XPENDING", "s", "g")[0] == pending + 1
    assert len(client.call("XINFO", "CONSUMERS", "t", "g")) == 1
    again = client.call(*["XREADGROUP", "GROUP", "g", "new", "MAXCOUNT", "1", "STREAMS", "s", "t", ">", ">"])
    assert again[0][1][0][0] > reply[0][1][0][0]


def test_each_command_of_a_transaction_has_its_own_budget() -> None:
    """Each command of a transaction has its own budget; earlier replies in the same MULTI do not count."""
    client = filled(random.Random(5), 2)
    alone = client.call(*["XREAD", "MAXSIZE", "60", "STREAMS", "s", "t", "0", "0"])
    client.call("MULTI")
    for _ in range(2):
        client.call(*["XREAD", "MAXSIZE", "60", "STREAMS", "s", "t", "0", "0"])
    assert client.call("EXEC") == [alone, alone]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("MAXCOUNT 0", "ERR MAXCOUNT must be a positive integer"),
        ("MAXCOUNT -1", "ERR MAXCOUNT must be a positive integer"),
        ("MAXCOUNT x", "ERR MAXCOUNT must be a positive integer"),
        ("MAXCOUNT 9223372036854775808", "ERR MAXCOUNT must be a positive integer"),
        ("MAXSIZE 0", "ERR MAXSIZE must be a positive integer"),
        ("MAXSIZE 1.5", "ERR MAXSIZE must be a positive integer"),
        ("COUNT 3 MAXCOUNT 2", "ERR MAXCOUNT must be greater than or equal to COUNT"),
        ("MAXCOUNT 2 COUNT 3", "ERR MAXCOUNT must be greater than or equal to COUNT"),
    ],
)
def test_budgets_that_are_none_are_refused(options: str, line: str) -> None:
    """An invalid budget is refused with Redis's error."""
    client = World().client(2)
    assert client.call("XREAD", *options.split(), "STREAMS", "s", "0") == Error(line)


def test_count_below_one_bounds_nothing() -> None:
    """COUNT 0 means no limit, so it is never below MAXCOUNT."""
    client = filled(random.Random(1), 2)
    assert len(streams_of(client.call(*["XREAD", "COUNT", "0", "MAXCOUNT", "1", "STREAMS", "s", "0"]))[0][1]) == 1
