"""Typed columns against Spark's own cast: the same value, or null and a report."""

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millstream.spark.arrow.columns import as_arrow
from millstream.spark.arrow.parse_values import convert
from support import campaign

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_DECIMALS = [(38, 18), (38, 0), (38, 38), (20, 2), (18, 6), (10, 0), (5, 2), (1, 1)]
NUMBERS = ["tinyint", "smallint", "int", "bigint", "float", "double", *(f"decimal({p},{s})" for p, s in _DECIMALS)]
TYPES = [*NUMBERS, "boolean", "date", "timestamp", "timestamp_ntz"]
_LENGTHS = [0, 1, 2, 3, 5, 9, 10, 17, 18, 19, 20, 21, 37, 38, 39, 40, 76, 77, 309, 1000]
_BORDERS = [7, 8, 15, 16, 24, 31, 32, 53, 63, 64, 127, 128, 255, 256]
_EXPONENTS = ["", "0", "1", "-1", "+5", "17", "18", "-18", "20", "37", "38", "-39", "308", "309", "-324", "999999999"]
_WORDS = ["NaN", "nan", "inf", "-inf", "+inf", "Infinity", "-Infinity", "1f", "1d", "0x1p3", "e1", ".", "-", "1e-400"]
_ZONES = ["", "", "Z", "z", " Z", "+00:00", "-00:00", "+01:00", "-12", "+0530", "+18:00", "+18:01", "+99:99", "+00:60"]
_TRUTHS = ["true", "TRUE", "t", "no", "1", "0", "on", "2", "01", "false ", "\0true", "False", "falsch"]


def _digits(chance: random.Random, count: int) -> str:
    return "".join(chance.choices("0123456789", k=count))


def _number(chance: random.Random) -> str:
    length = chance.choice(_LENGTHS)
    border = str(2 ** chance.choice(_BORDERS) + chance.randint(-2, 2))
    whole = chance.choice(
        ["", "0", "9" * length, "1" + "0" * length, "0" * length + "7", _digits(chance, length), border]
    )
    part = "." + chance.choice(["", "5", "9" * length, "0" * length, _digits(chance, chance.choice(_LENGTHS[:16]))])
    exponent = chance.choice("eE") + chance.choice(_EXPONENTS)
    sign = chance.choice(["", "", "-", "+", "--", " ", "\u0663", "_"])
    text = sign + whole + chance.choice(["", part]) + chance.choice(["", "", exponent])
    return text + chance.choice([""] * 12 + [" ", "\n", "\0", "L", "d", ","])


def _date(chance: random.Random) -> str:
    year = chance.choice(["2020", "0000", "0001", "9999", "10000", "-0001", "20", _digits(chance, 4)])
    month = chance.choice(["01", "02", "12", "13", "00", "1"])
    return f"{year}-{month}-{chance.choice(['01', '28', '29', '30', '31', '32', '00', '1'])}"


def _time(chance: random.Random) -> str:
    clock = chance.choice(["00", "23", "24", "12", "7"])
    for part in range(2):
        if chance.random() < 0.9:
            clock += ":" + chance.choice(["00", "59", "60", "5"] if part else ["00", "59", "30"])
    if chance.random() < 0.6:
        clock += chance.choice([".", ".", ".", ","]) + _digits(chance, chance.choice([0, 1, 3, 6, 7, 8, 9, 10, 20]))
    day = chance.choice([_date(chance), "2024-02-29"])
    return chance.choice(
        [day, *(day + between + clock + chance.choice(_ZONES) for between in ("T", " ", "T", " ", "t"))]
    )


def _text(chance: random.Random, kind: str) -> str:
    if kind in ("float", "double") and chance.random() < 0.2:
        return chance.choice(_WORDS)
    if kind in NUMBERS:
        return _number(chance)
    if kind == "boolean":
        return chance.choice(_TRUTHS)
    return _date(chance) if kind == "date" else _time(chance)


def compare(spark: "SparkSession", kind: str, texts: list[str]) -> int:
    """Compare a column with Spark's cast and return the number of texts that became values."""
    schema = spark.createDataFrame([], f"c {kind}").schema
    source = pa.array([text.encode() for text in texts], pa.binary()).view(pa.string())
    ours, mistaken = convert(source, as_arrow(schema).field(0).type)
    reported = set(mistaken or [])
    unreported = [text for row, text in enumerate(texts) if text and not ours[row].is_valid and row not in reported]
    assert unreported == [], f"{kind}: null without a report"
    rows = spark.createDataFrame(pa.table({"text": source, "ours": ours}))
    cast = rows.where("ours is not null").selectExpr("text", "ours", f"try_cast(text as {kind}) as spark")
    wrong = cast.where("not ours <=> spark").selectExpr("text", "cast(ours as string)", "cast(spark as string)")
    assert wrong.limit(20).collect() == [], f"{kind}: (text, ours, Spark's)"
    return int(len(ours) - ours.null_count)


@pytest.mark.parametrize("kind", ["decimal(38,18)", "timestamp", "timestamp_ntz", "double"])
def test_a_typed_column_is_what_spark_casts_or_null_with_a_report(spark: "SparkSession", kind: str) -> None:
    """A typed column has the value of Spark's own cast, or null and a report for a text beyond its type's range."""
    chance = random.Random(kind)
    assert compare(spark, kind, [_text(chance, kind) for _ in range(2000)]) > 20


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_typed_columns_of_many_adversarial_texts(spark: "SparkSession") -> None:
    """For 100,000 adversarial texts of each type, a column equals Spark's cast or is null and reported."""

    def piece(seed: int) -> int:
        kind = TYPES[seed % len(TYPES)]
        chance = random.Random(seed)
        compare(spark, kind, [_text(chance, kind) for _ in range(20_000)])
        return 20_000

    campaign.run("typed-columns", piece, range(5 * len(TYPES)), unit="texts")
