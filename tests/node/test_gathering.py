"""The copies of nodes on their way to a pack, and the memory that they take."""

import tracemalloc

from millstream.engine.streams import extents, nodeform
from millstream.engine.streams.stream import Stream
from millstream.node.tiering.gathering import EXTENT, Batch, Copies
from millstream.node.tiering.policy import Leave

SIZE, NODES = 4 << 20, 1000


def stream_of(nodes: int) -> Stream:
    """Return a stream of nodes of 4 KiB."""
    stream = Stream(100, 100)
    for number in range(4 * nodes):
        stream.add((number + 1) << 64, [b"f", b"%04d" % number * 256], fresh=number % 4 == 0)
    return stream


def copied(stream: Stream) -> Batch:
    """Return a batch of copies of the stream's first nodes."""
    part = Copies((0, b"s"), stream)
    return Batch([part], part.gather(Leave(), SIZE))


def test_the_bytes_of_a_batch_are_held_once() -> None:
    """Making the payloads of a batch takes no more memory than two extents, since copies are let go meanwhile."""
    batch = copied(stream_of(2 * NODES))
    tracemalloc.start()
    try:
        again = copied(batch.parts[0].stream)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        payloads = again.payloads()
        after, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert SIZE <= sum(map(len, payloads)) < SIZE * 9 // 8
    assert after - before < EXTENT
    assert most - before < 3 * EXTENT


def test_payloads_have_the_bytes_of_the_nodes() -> None:
    """Each payload is that of its nodes; the copies stay readable, for a comparison with the nodes."""
    batch = copied(stream_of(2 * NODES))
    (part,) = batch.parts
    hot = part.stream.entries.hot_nodes()
    before = [(facts, bytes(data)) for joined in part.extents for facts, data in joined]
    assert before == [nodeform.encode(node) for node, _ in zip(hot, before, strict=False)]
    payloads = batch.payloads()
    assert [(facts, bytes(data)) for joined in part.extents for facts, data in joined] == before
    assert [row.facts for payload in payloads for row in extents.rows(payload)] == [facts for facts, _ in before]
    assert b"".join(payload[extents.rows(payload)[0].begin :] for payload in payloads) == b"".join(
        data for _, data in before
    )
