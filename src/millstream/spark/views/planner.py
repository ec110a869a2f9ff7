"""The division of a view among tasks: made at the driver from short replies, so that no task reads all of it."""

from collections.abc import Iterator, Sequence

from millstream.client.dead_letter.letter import SUFFIX, dead_key
from millstream.errors import NotFoundError
from millstream.spark.connection.router import Router, absent, checked, pairs
from millstream.spark.model import offsets
from millstream.spark.model.offsets import Range, parse_id
from millstream.spark.options.read import Options
from millstream.spark.read.stream_info import StreamInfo
from millstream.spark.views.columns import ViewPartition

_KEYS_A_TASK = 500
"""Most streams with groups or consumers that one task reads."""
_SUMMARY_PAGE = 1000
"""Most groups with summaries in one round trip."""


def plan(kind: str, parsed: Options) -> list[ViewPartition]:
    """Return the shares of a view's tasks."""
    info, router = StreamInfo(parsed), Router(parsed.url)
    try:
        if kind == "dead":
            keys = _dead_letter_streams(info, parsed)
            states = info.states(keys)
            wholes = [
                (b"", Range(key, offsets.ZERO, state.last, 0, state.length, state.first))
                for key, state in states.items()
                if state is not None and state.first is not None
            ]
            return _split(wholes, parsed)
        keys = info.keys()
        for key, state in info.states(keys).items():
            if state is None and parsed.streams:
                raise NotFoundError(
                    f"option 'stream': {key!r} does not exist on {parsed.shown_url}; correct the name, or use "
                    "'streamPattern'"
                )
        if kind == "pending":
            return _split(list(_pending(router, keys)), parsed)
        size = _KEYS_A_TASK
        if parsed.min_partitions is not None:
            size = max(1, min(size, len(keys) // parsed.min_partitions))
        return [ViewPartition(tuple(keys[at : at + size])) for at in range(0, len(keys), size)]
    finally:
        info.close()
        router.close()


def _dead_letter_streams(info: StreamInfo, parsed: Options) -> list[str]:
    """Return the dead-letter streams of the named streams, or of all that match the pattern."""
    keys = info.keys()
    if parsed.pattern is not None and not parsed.pattern.endswith(SUFFIX):
        # A stream may have been deleted while its dead letters still exist.
        keys = [*keys, *info.keys(parsed.pattern + SUFFIX)]
    return sorted({dead_key(key) for key in keys})


def _pending(router: Router, keys: Sequence[str]) -> Iterator[tuple[bytes, Range]]:
    """Yield each group with pending entries, and the range of their ids.

    XPENDING's summary has both, and costs the server the same however many are pending; the tasks read the entries
    themselves. A group that was deleted between the two commands gives nothing.
    """
    groups: list[tuple[str, bytes]] = []
    for key, reply in zip(keys, router.ask([("XINFO", "GROUPS", key) for key in keys]), strict=True):
        if not absent(reply):
            groups += [(key, row[b"name"]) for row in map(pairs, checked(reply)) if row[b"pending"]]
    for at in range(0, len(groups), _SUMMARY_PAGE):
        page = groups[at : at + _SUMMARY_PAGE]
        summaries = router.ask([("XPENDING", key, group) for key, group in page])
        for (key, group), summary in zip(page, summaries, strict=True):
            if absent(summary) or not checked(summary)[0]:
                continue
            first, last = (parse_id(ident.decode()) for ident in summary[1:3])
            yield group, Range(key, offsets.ZERO, last, 0, summary[0], first)


def _split(wholes: list[tuple[bytes, Range]], parsed: Options) -> list[ViewPartition]:
    """Return the shares of some ranges of ids, cut by their numbers of entries as in a plain read."""
    total = sum(whole.rows for _, whole in wholes)
    found = []
    for group, whole in wholes:
        parts = offsets.parts_for(whole.rows, total, parsed.min_partitions)
        found += [ViewPartition((whole.key,), group, part.start, part.end) for part in offsets.split(whole, parts)]
    return found
