"""Spark's part reads any bytes of a client or reports the fault: no input ends a task with a Python error.

Each reader gets valid inputs with mutations: changed bits and bytes, cut, doubled and exchanged parts, and absurd
numbers and nestings. The result must be a value or one of Millstream's errors.
"""

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.client.dead_letter.letter import DeadLetter, pack, take_history
from millstream.errors import MillstreamError
from millstream.spark.archiving import manifest
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile
from millstream.spark.arrow.columns import Layout
from millstream.spark.arrow.decode import decode_parsed
from millstream.spark.arrow.decode_uniform import decode_uniform
from millstream.spark.connection.connection import pack as packed
from millstream.spark.model import claims, offsets
from millstream.spark.model.offsets import Id, Position
from millstream.spark.monitoring import store
from millstream.spark.recovery.lock import died_here
from millstream.spark.views.columns import COLUMNS
from millstream.spark.views.rows import letter_row, to_column
from millstream.spark.write.commit_record import CommitRecord
from millstream.spark.write.pieces import read_piece
from millstream.spark.write.staging import Part
from support import campaign

PIECE = 2000
"""Inputs in one piece of the campaign."""

_PIECE = b"2 1-0\n" + packed(*(("XADD", "s", f"{number}-0", "n", "x") for number in (1, 2)))

ABSURD = (
    b"[" * 3000, b'{"a":' * 3000, b"9" * 5000, b"-1", b"1e999", b"Infinity", b"NaN", b"null", b"true", b'""', b"\x00",
    b"\xff\xfe", b"\xed\xa0\x80", b'"\\ud800"', b"18446744073709551616", b"9223372036854775808",
    b"-9223372036854775809",
    b"0-0", b"99999999999999999999-1", b"\xc2\xb2", b"{}", b"[]", b"\r\n", b"%s", b"../../etc",
    b"10000-01-01T00:00:00Z", b"[1e999999999]",
    b"2026-01-31T12:00:00+99:99", b"2026-01-31T12:00:00Z", b"1" + b"0" * 400,
)  # fmt: skip


def mutated(random_: random.Random, good: bytes) -> bytes:
    """Return the input with one to four changes."""
    made = bytearray(good)
    for _ in range(random_.randint(1, 4)):
        at, end = sorted((random_.randint(0, len(made)), random_.randint(0, len(made))))
        end = min(end, at + random_.choice((0, 1, 4, 64)))
        kind = random_.randrange(5)
        if kind == 0 and made:
            made[min(at, len(made) - 1)] ^= 1 << random_.randrange(8)
        elif kind == 1:
            made[at:end] = random_.choice(ABSURD)
        elif kind == 2:
            del made[at:end]
        elif kind == 3:
            made[at:at] = made[at:end] * 2
        else:
            made[at:end] = random_.randbytes(end - at)
    return bytes(made)


# --- what is read, in good order -------------------------------------------------------------------------------------

_AT = {"s": Position(Id(1, 0), 1, Id(9, 0), 9, 2)}
_CLAIM = claims.Claim("g", "q", 3, {"s": (claims.Run(Id(1, 0), Id(4, 0), 4),)})
_MANIFEST = ArchiveManifest(
    7, {"s": ArchivePosition(Id(9, 0), 9)}, (DataFile("stream=s/a.parquet", "s", Id(1, 0), Id(9, 0), 9, 100),)
)
_RECORD = CommitRecord(4, (Part("s", "millstream:sink:k", 2, 9, "1-0", "9-0"),))
_QUERY = store.NEW | {"id": "i", "driver": "d", "state": "running", "at_ms": 5, "lag": 3}
_DEATH = {"id": "1-0", "group": "g", "consumer": "c", "deliveries": 2, "reason": "error", "error": "x", "died_ms": 5}
_LETTER = DeadLetter(
    (b"a", b"1"), "s", "1-0", "g", "c", 3, "error", "ValueError: x", "Traceback", 5, 9, ({**_DEATH, "returned_ms": 7},)
)
_VALUES = (
    b"17", b"1.5", b"12.34", b"true", b"2026-01-31", b"2026-01-31T12:00:00Z", b'{"a": 1, "b": ["x", null]}', b"[1, 2]",
    b'{"k": 1.5}', b"text",
)  # fmt: skip
_COLUMNS = (
    IntegerType(), DoubleType(), DecimalType(6, 2), StringType(), DateType(), TimestampType(),
    StructType([StructField("a", IntegerType()), StructField("b", ArrayType(StringType()))]), ArrayType(IntegerType()),
    MapType(StringType(), DoubleType()), TimestampNTZType(),
)  # fmt: skip
_LAYOUT = Layout.of(
    StructType(
        [
            StructField("id", StringType()),
            StructField("timestamp", TimestampType()),
            *(StructField(f"f{at}", kind) for at, kind in enumerate(_COLUMNS)),
            StructField("_corrupt", StringType()),
        ]
    )
)


def entries(random_: random.Random) -> None:
    """Decode entries with mutated fields as a task does, by both decoders."""
    rows = []
    for number in range(1, 4):
        flat: list[bytes] = []
        for at, value in enumerate(_VALUES):
            name = f"f{at}".encode()
            flat += [mutated(random_, name) if random_.random() < 0.05 else name, value]
            flat[-1] = mutated(random_, value) if random_.random() < 0.5 else value
        rows.append([b"%d-%d" % (number, random_.choice((0, 2**64 - 1))), flat])
    raw = b"".join(map(_wire, [rows]))
    found = [decode_parsed(rows, _LAYOUT.want)]
    found += [made[0]] if (made := decode_uniform(raw, _LAYOUT.want)) is not None else []
    for page in found:
        assert page is not None
        assert _LAYOUT.batch("s", page).num_rows == len(rows)


def _wire(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    return b"*%d\r\n" % len(value) + b"".join(map(_wire, value))


def letters(random_: random.Random) -> None:
    """Decode mutated dead letters and released entries as the view does."""
    flat = [mutated(random_, word) if random_.random() < 0.1 else word for word in pack(_LETTER)]
    row = letter_row(flat)
    for value, kind in zip(row, COLUMNS["dead"].values(), strict=False):
        from pyspark.sql.pandas.types import to_arrow_type

        assert len(to_column([value], to_arrow_type(kind, timezone="UTC"))) == 1
    fields, history = take_history([b"a", b"1", b"_dead.history", mutated(random_, flat[-1])])
    assert len(fields) == (2 if history is not None and len(fields) == 2 else 4)


def _bytes(read: Callable[[bytes], object], good: bytes, *errors: type[Exception]) -> Callable[[random.Random], None]:
    def check(random_: random.Random) -> None:
        with contextlib.suppress(MillstreamError, *errors):
            read(mutated(random_, good))

    return check


def _json(read: Callable[[Any], object], good: Any) -> Callable[[random.Random], None]:
    """Make a check of an input that Spark parses as JSON before Millstream reads it."""

    def check(random_: random.Random) -> None:
        try:
            raw = json.loads(mutated(random_, json.dumps(good).encode()))
        except (ValueError, RecursionError):
            return
        with contextlib.suppress(MillstreamError):
            read(raw)

    return check


READERS: dict[str, Callable[[random.Random], None]] = {
    "entries": entries,
    "letters": letters,
    "manifest": _bytes(manifest.load, manifest.dump(_MANIFEST).encode()),
    "offsets": _json(offsets.load, offsets.dump(_AT)),
    "claims": _json(lambda raw: claims.load(raw, "g", "q"), claims.dump(_CLAIM)),
    "record": _bytes(CommitRecord.unpacked, _RECORD.packed().encode(), ValueError),
    "piece": _bytes(lambda raw: read_piece(raw, "s"), _PIECE, ValueError),
    "queries": _bytes(store.query_facts, json.dumps(_QUERY).encode()),
    "lock": _bytes(died_here, b"host:12:ab"),
}


def mutations(seed: int, count: int = PIECE) -> int:
    """Run ``count`` mutated inputs, each through its reader, and return their number."""
    random_ = random.Random(seed)
    for number in range(count):
        name = random_.choice(list(READERS))
        try:
            READERS[name](random_)
        except Exception as reason:
            raise AssertionError(f"input {number} of seed {seed}, for {name}: {reason!r}") from reason
    return count


def test_in_good_order_all_of_it_is_read() -> None:
    """The unmutated inputs are all valid."""
    assert manifest.load(manifest.dump(_MANIFEST)) == _MANIFEST
    assert offsets.load(offsets.dump(_AT)) == _AT
    assert claims.load(claims.dump(_CLAIM), "g", "q") == _CLAIM
    kept = CommitRecord.unpacked(_RECORD.packed().encode())
    assert (kept.version, kept.parts) == (4, _RECORD.parts)
    assert store.query_facts(json.dumps(_QUERY).encode()) == {
        name: value for name, value in _QUERY.items() if value is not None
    }
    assert read_piece(_PIECE, "s").first == Id(1, 0)
    rows = [[b"1-0", [word for at, value in enumerate(_VALUES) for word in (f"f{at}".encode(), value)]]]
    page = decode_parsed(rows, _LAYOUT.want)
    assert page is not None
    (row,) = _LAYOUT.batch("s", page).to_pylist()
    assert (row["f0"], row["f6"], row["f7"]) == (17, {"a": 1, "b": ["x", None]}, [1, 2])


@pytest.mark.parametrize("seed", range(1, 3))
def test_mutated_inputs_are_read_or_refused(seed: int) -> None:
    """Spark's part reads or refuses each of a thousand damaged inputs, never with a Python error."""
    assert mutations(seed, PIECE // 4) == PIECE // 4


@pytest.mark.parametrize(
    "value", [b"[" * 5000, b'["\\ud800"]', b'{"\\ud800": 1}', b"[1e999999999]", b"[" + b"9" * 5000 + b"]"]
)
@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.map_(pa.string(), pa.string()), pa.list_(pa.int64())])
def test_one_value_of_one_entry_fails_no_column(value: bytes, kind: pa.DataType) -> None:
    """A bad value of one entry becomes null and is counted, and the other values of the column are unchanged."""
    from millstream.spark.arrow.parse_values import convert

    found, _ = convert(pa.array([b"null", value, b"null"]).view(pa.string()), kind)
    assert len(found) == 3


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_hundred_thousand_mutated_inputs() -> None:
    """Spark's part reads or refuses each of a hundred thousand damaged inputs, never with a Python error."""
    campaign.run("spark-mutations", mutations, range(100, 150), processes=2, unit="mutated inputs")
