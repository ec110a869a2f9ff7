"""Planning from numbers alone: the content of a batch, its split into partitions, and the detection of loss."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.spark.model import offsets
from millstream.spark.model.offsets import ZERO, Id, Index, Position, Range, StreamState

ids = st.builds(Id, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
keys = st.text(min_size=1, max_size=8)
counts = st.integers(0, 10**12)


@settings(deadline=None)
@given(st.dictionaries(keys, st.builds(Position, ids, counts, ids, counts, counts), max_size=4))
def test_an_offset_survives_the_checkpoint_and_has_one_text(offset: offsets.Offset) -> None:
    """An offset has one JSON text and is read back from a checkpoint unchanged."""
    text = json.dumps(offsets.dump(offset))
    assert offsets.load(json.loads(text)) == offset
    turned = dict(reversed(list(offset.items())))
    assert json.dumps(offsets.dump(turned)) == text


@pytest.mark.parametrize(
    "raw", [{"0": 17}, {"s": {"id": "1-0"}}, {"s": {"from": "x", "from_n": 0, "id": "1-0", "n": 1}}]
)
def test_offsets_of_another_source_are_refused(raw: dict[str, object]) -> None:
    """An offset of another source is refused with the checkpoint option."""
    with pytest.raises(UsageError, match="checkpointLocation"):
        offsets.load(raw)


@settings(deadline=None)
@given(ids, ids)
def test_ids_order_as_numbers_and_as_pairs(one: Id, other: Id) -> None:
    """Ids as single numbers have the same order as pairs."""
    assert (one < other) == (one.as_int() < other.as_int())
    assert offsets.parse_id(str(one)) == one


@pytest.mark.parametrize("text", ["", "-", "1-", "-1", "1-2-3", "a-1", "18446744073709551616-0", "$", "1 -1"])
def test_what_is_no_id_is_refused(text: str) -> None:
    """An invalid id in an option is an error."""
    with pytest.raises(ValueError, match="id"):
        offsets.parse_id(text)


@settings(deadline=None)
@given(st.dictionaries(keys, st.integers(-5, 1000), max_size=12), st.one_of(st.integers(1, 15), st.integers(1, 3000)))
def test_shares_keep_the_cap_and_waste_nothing(wanted: dict[str, int], cap: int) -> None:
    """``maxEntriesPerTrigger`` is never exceeded, and is used up if there are enough entries."""
    got = offsets.share(wanted, cap, dict.fromkeys(wanted, ZERO))
    assert all(0 < got[key] <= wanted[key] for key in got)
    assert sum(got.values()) == min(cap, sum(max(0, count) for count in wanted.values()))


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(2, 30))
def test_no_stream_starves(cap: int, streams: int) -> None:
    """If a trigger allows fewer entries than there are streams, each stream is served within one round."""
    position = {f"s{number:02}": Id(1, number) for number in range(streams)}
    served = set()
    for step in range(-(-streams // cap)):
        got = offsets.share(dict.fromkeys(position, 100), cap, position)
        for key in [key for key in got if got[key]]:
            served.add(key)
            position[key] = Id(2 + step, 0)
    assert served == set(position)


def test_a_busy_stream_does_not_starve_a_quiet_one() -> None:
    """A quiet stream gets all of its entries, and the busy stream gets the remaining budget."""
    assert offsets.share({"busy": 10**6, "quiet": 7}, 100, {"busy": ZERO, "quiet": ZERO}) == {"busy": 93, "quiet": 7}


@settings(deadline=None)
@given(
    st.sets(st.integers(1, 10**6), min_size=1, max_size=300).map(sorted),
    st.integers(1, 40),
    st.integers(0, 299),
    st.integers(1, 10**6),
)
def test_parts_cover_the_range_exactly_once(at: list[int], parts: int, pick: int, budget: int) -> None:
    """Each id of a batch's range lies in exactly one partition, for any spread of ids, and partitions are in order."""
    known = [(Id(ms, 0), place + 1) for place, ms in enumerate(at[:-1])][:: max(1, pick)]
    whole = Range("s", Id(at[0] - 1, 0), Id(at[-1], 5), 0, len(at) + budget % 7, Id(at[0], 0))
    found = offsets.split(whole, parts, known)
    assert 1 <= len(found) <= parts
    assert found[0].start == whole.start
    assert found[-1].end == whole.end
    assert all(one.end == other.start and one.start < one.end for one, other in pairwise(found))


def test_an_even_stream_is_split_evenly() -> None:
    """With ``minPartitions``, entries at a steady rate are split into parts of about equal size."""
    whole = Range("s", ZERO, Id(1_700_000_999_999, 0), 0, 1_000_000, Id(1_700_000_000_000, 0))
    sizes = [part.end.ms - max(part.start.ms, 1_700_000_000_000) for part in offsets.split(whole, 4)]
    assert max(sizes) - min(sizes) < 10


def test_known_counts_even_out_a_stream_that_is_not_even() -> None:
    """If half the entries came in the last tenth of the time, a known count inside makes the parts equal."""
    whole = Range("s", ZERO, Id(1000, 0), 0, 1000, Id(1, 0))
    one, two = offsets.split(whole, 2, [(Id(900, 0), 500)])
    assert one.end.ms == two.start.ms == 900


@pytest.mark.parametrize(
    ("rows", "total", "wanted", "parts"),
    [
        (1000, 1000, None, 1),
        (100_001, 100_001, None, 2),
        (10**9, 10**9, None, 8),
        (500, 1000, 4, 2),
        (3, 3, 10, 3),
        (0, 0, 5, 1),
    ],
)
def test_how_many_parts(rows: int, total: int, wanted: int | None, parts: int) -> None:
    """``minPartitions`` is divided by size. Without it, only large ranges are split."""
    assert offsets.parts_for(rows, total, wanted) == parts


# --- batches ---------------------------------------------------------------------------------------------------------


def _at(ms: int, n: int) -> Position:
    return Position.at(Id(ms, 0), n)


def test_a_batch_is_what_lies_between_two_offsets() -> None:
    """Streams without new entries have no range. A stream that joined is read from the beginning in its end offset."""
    start = {"a": _at(5, 2), "b": _at(9, 4)}
    end = {"a": start["a"].advanced(Id(8, 0), 6), "b": start["b"], "c": Position(ZERO, 0, Id(3, 0), 3)}
    assert offsets.batch_ranges(start, end) == [Range("a", Id(5, 0), Id(8, 0), 2, 4), Range("c", ZERO, Id(3, 0), 0, 3)]


def test_a_first_batch_that_failed_is_repeated_from_its_own_beginning() -> None:
    """A failed first batch is repeated from its logged beginning, although "latest" has moved since."""
    logged = {"a": Position(Id(5, 0), 2, Id(8, 0), 6)}
    assert offsets.batch_ranges({"a": _at(20, 15)}, logged) == [Range("a", Id(5, 0), Id(8, 0), 2, 4)]


def test_an_empty_first_batch_stays_empty_when_the_start_has_moved_past_it() -> None:
    """After a restart, an empty first batch stays empty, even if the start is beyond its end."""
    assert offsets.batch_ranges({"a": _at(20, 15)}, {"a": _at(8, 6)}) == []


def test_a_batch_over_skipped_offsets_begins_at_its_start() -> None:
    """If Spark skips offsets, as with asynchronous progress, the batch reads the entries between them."""
    logged = {"a": Position(Id(8, 0), 6, Id(12, 0), 9)}
    assert offsets.batch_ranges({"a": _at(5, 2)}, logged) == [Range("a", Id(5, 0), Id(12, 0), 2, 7)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), max_size=60), st.integers(1, 10**6))
def test_a_cut_at_a_known_point_keeps_the_budget(steps: list[tuple[int, int]], budget: int) -> None:
    """A batch that is cut at a remembered place has at least nine tenths of its budget, and never more than it."""
    index, ms, n = Index(), 0, 0
    for step, more in steps:
        ms, n = ms + step, n + more
        index.add(Id(ms, 0), n)
    at = Position.at(ZERO, 0)
    cut = index.cut(at, budget)
    assert cut is None or budget * 0.9 <= cut[1] <= budget


def test_the_index_stays_small_and_forgets_what_was_read() -> None:
    """The index of known places has a limit and drops the places that were read."""
    index = Index(limit=100)
    for number in range(1, 10_000):
        index.add(Id(number, 0), number)
    assert len(index.between(ZERO, Id(10**9, 0))) <= 100
    index.forget_before(Id(9_998, 0))
    assert len(index.between(ZERO, Id(10**9, 0))) <= 1


# --- a stream as a model, and what the planner may say of it ---------------------------------------------------------


class Model:
    """A stream model with its full history, to check the counts."""

    def __init__(self) -> None:
        self.added: list[int] = []
        self.there: list[int] = []
        self.max_deleted = 0

    def state(self) -> StreamState:
        first = Id(self.there[0], 0) if self.there else None
        last = Id(self.added[-1], 0) if self.added else ZERO
        return StreamState(last, len(self.added), len(self.there), Id(self.max_deleted, 0), first)

    def add(self, count: int) -> None:
        for _ in range(count):
            self.added.append(len(self.added) + 1)
            self.there.append(self.added[-1])

    def trim(self, keep: int) -> None:
        self.there = self.there[max(0, len(self.there) - keep) :]

    def delete(self, place: int) -> None:
        if self.there:
            self.max_deleted = max(self.max_deleted, self.there.pop(place % len(self.there)))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30)),
        st.tuples(st.just("trim"), st.integers(0, 30)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("read"), st.integers(1, 20)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps)
@example([("add", 10), ("delete", 5), ("read", 8), ("trim", 1), ("read", 1)])
@example([("add", 10), ("delete", 9), ("read", 3)])
def test_what_is_called_certain_loss_was_trimmed_and_no_trimming_goes_unnoticed(script: list[tuple[str, int]]) -> None:
    """Loss is never reported falsely. Without deletions, every loss is reported with its exact number."""
    model, at = Model(), Position.at(ZERO, 0)
    trimmed: set[int] = set()
    for what, number in script:
        if what == "add":
            model.add(number)
        elif what == "trim":
            before = set(model.there)
            model.trim(number)
            trimmed |= before - set(model.there)
        elif what == "delete":
            model.delete(number)
        else:
            state = model.state()
            loss = offsets.find_loss("s", at, state)
            lost = [entry for entry in trimmed if entry > at.id.ms]
            if loss is not None and loss.certain:
                assert lost
                assert loss.count <= len(lost)
            if not model.max_deleted:
                assert (loss.count if loss else 0) == len(lost)
            rows = [entry for entry in model.there if entry > at.id.ms][:number]
            if rows:
                last = Id(rows[-1], 0)
                at = (
                    at.advanced(last, state.added)
                    if last == state.last
                    else offsets.counted_cut(at, state, last, len(rows))
                )
                assert at.n <= at.id.ms <= at.n + at.holes


def test_going_back_is_seen_by_id_by_count_and_by_absence() -> None:
    """Spark's source detects a recreated stream by its last id, its count of added entries or its absence."""
    at = Position(Id(5, 0), 5, Id(9, 0), 9)
    whole = StreamState(Id(9, 0), 9, 9, ZERO, Id(1, 0))
    assert offsets.went_back("s", at, whole) is None
    for worse in (None, StreamState(Id(8, 0), 9, 8, ZERO, Id(1, 0)), StreamState(Id(12, 0), 8, 8, ZERO, Id(1, 0))):
        told = offsets.went_back("s", at, worse)
        assert told is not None
        assert "went back" in told
        assert "9-0" in told


def test_a_query_may_begin_ahead_of_its_stream() -> None:
    """A query that starts in the future is not reported as a stream that went back."""
    assert offsets.went_back("s", Position.at(Id(99, 0), 3), StreamState(Id(9, 0), 3, 3, ZERO, Id(1, 0))) is None
    assert offsets.went_back("s", Position.at(ZERO, 0), None) is None
