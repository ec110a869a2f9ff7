"""Entries become rows with typed columns and are reproduced byte for byte, for any types."""

import json

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError, StorageError
from millstream.spark.archiving.tables.columns import (
    MOST_COLUMNS,
    ColumnType,
    TableColumn,
    agreed,
    extended,
    load_columns,
    parse_schema,
)
from millstream.spark.archiving.tables.folders import table_folder
from millstream.spark.archiving.tables.rows import columns_of, documents_of, entries_of, initial, shaped
from millstream.spark.archiving.tables.shape import Shape, Wanted, choose, describe, part_of
from millstream.spark.arrow.page import LISTED

Pairs = list[tuple[bytes, bytes]]


def table(rows: list[Pairs]) -> pa.Table:
    """Build the table of entries as a task receives them."""
    fields = pa.array([[{"name": name, "value": value} for name, value in row] for row in rows], LISTED)
    ms = pa.array([1_700_000_000_000 + at for at in range(len(rows))], pa.uint64())
    return pa.table({"id_ms": ms, "id_seq": pa.array([0] * len(rows), pa.uint64()), "fields": fields})


def back(made: pa.Table) -> list[Pairs]:
    """Convert the rows back to entries."""
    (batch,) = made.combine_chunks().to_batches()
    found = entries_of(batch, columns_of(made.schema)).to_pylist()
    return [[(pair["name"], pair["value"]) for pair in row] for row in found]


def through(rows: list[Pairs], shape: Shape | None = None, known: tuple[TableColumn, ...] = ()) -> pa.Table:
    made, columns, *_ = shaped(table(rows), shape or Shape(), known)
    assert columns_of(made.schema) == columns
    return made


words = st.sampled_from(
    [b"a", b"b", b"", b"id", b"A", b"a b", b"\xff", "ü".encode(), b"1", b"0", b"-0", b"007", b"12.50", b"12.5", b"1e5",
     b"1e999", b"nan", b"true", b"True", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808",
     b"18446744073709551615", b"2026-03-01", b"2026-03-01T10:00:00Z", b"\x00", b'"', b"\xed\xa0\x80", b"1.0"]
)  # fmt: skip
pairs = st.lists(st.tuples(words, st.one_of(words, st.binary(max_size=3))), min_size=1, max_size=5)


@settings(deadline=None, max_examples=150)
@example([[(b"a", b"1"), (b"b", b"2")], [(b"b", b"2"), (b"a", b"1")], [(b"a", b"1"), (b"a", b"1")]], [[(b"a", b"x")]])
@given(st.lists(pairs, min_size=1, max_size=6), st.lists(pairs, min_size=1, max_size=4))
def test_entries_come_back_to_the_byte(first: list[Pairs], second: list[Pairs]) -> None:
    """Entries are reproduced byte for byte with inferred, earlier, named and schema columns."""
    made = through(first)
    assert back(made) == first
    columns = columns_of(made.schema)
    later = through(second, known=columns)
    assert back(later) == second
    assert columns_of(later.schema)[: len(columns)] == columns
    assert back(through(first, Shape(columns="fields", fields=(("a", None),)))) == first
    typed = Shape(columns="schema", fields=tuple(parse_schema("a bigint, `a b` decimal(9,2), id timestamp, A boolean")))
    assert back(through(first, typed, initial(typed))) == first


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), max_size=4), max_size=6))
@example(
    [
        [(b"a", b"x y"), (b"b", b"")],
        [],
        [(b'"', b"x")],
        [(b"a", b"\\")],
        [(b"a", b"\x7f~ ![]#")],
        [("é".encode(), b"\xff\n")],
    ]
)
def test_an_entry_beside_its_columns_is_json(rows: list[Pairs]) -> None:
    """An entry kept next to its columns is JSON, with the same text as Python's ``json`` writes."""
    made = documents_of(table(rows)["fields"].combine_chunks()).to_pylist()
    assert made == [
        json.dumps([[word.decode("utf-8", "surrogateescape") for word in pair] for pair in row]) for row in rows
    ]


def test_what_is_inferred() -> None:
    """Types are inferred from values that a type reproduces; leading zeros and long digits stay text."""
    values = {"n": b"-12", "d": b"12.50", "b": b"true", "s": b"tea", "x": b"\xff", "zip": b"00501", "big": b"1" * 20}
    made = through([[(name.encode(), value) for name, value in values.items()]])
    found = {column.name: str(column.type) for column in columns_of(made.schema)}
    assert found == {
        "n": "bigint", "d": "double", "b": "boolean", "s": "string", "x": "binary", "zip": "string", "big": "string",
    }  # fmt: skip
    assert made["d"].to_pylist() == [12.5]
    assert made["entry_json"].null_count == 0  # 12.5 differs from the written text
    assert through([[(b"n", b"1"), (b"s", b"x")]])["entry_json"].null_count == 1


def test_a_type_that_changes_gets_a_column_beside() -> None:
    """If a field's type changes, a second column is added. Each value is in the first column that fits."""
    known = columns_of(through([[(b"price", b"1")]]).schema)
    made = through([[(b"price", b"2")], [(b"price", b"2.5")], [(b"price", b"")], [(b"price", b"3")]], known=known)
    assert made["price"].to_pylist() == [2, None, None, 3]
    assert made["price_double"].to_pylist() == [None, 2.5, None, None]
    last = through([[(b"price", b"cheap")], [(b"price", b"4.5")]], known=columns_of(made.schema))
    assert [column.name for column in columns_of(last.schema)] == ["price", "price_double", "price_string"]
    assert last["price_string"].to_pylist() == ["cheap", None]


def test_names_that_no_column_can_have() -> None:
    """A field with a reserved name, signs, or a name used in another case gets a column of another name."""
    made = through([[(b"id", b"7"), (b"Item", b"a"), (b"item", b"b"), (b"a,b;c", b"1"), (b"1st", b"x"), (b"", b"y")]])
    assert [column.name for column in columns_of(made.schema)] == ["id_2", "Item", "item_2", "a_b_c", "_1st", "_"]
    assert made["id_2"].to_pylist() == [7]
    assert made["id"].to_pylist() == ["1700000000000-0"]


def test_made_up_names_make_no_columns_without_end() -> None:
    """Beyond the limit of columns, a field has no column, and its values are kept in the entry next to the columns."""
    rows = [[(b"f%d" % number, b"1")] for number in range(MOST_COLUMNS + 50)]
    made = through(rows)
    assert len(columns_of(made.schema)) == MOST_COLUMNS
    assert back(made) == rows


def test_tasks_that_saw_different_values_agree() -> None:
    """If tasks of a batch infer different types, the batch is written again with types that fit all."""
    one, other = (columns_of(through([[(b"p", value), (b"q", b"1")]]).schema) for value in (b"1", b"1.5"))
    columns, same = agreed((), [one, other])
    assert (same, [(each.name, str(each.type)) for each in columns]) == (False, [("p", "double"), ("q", "bigint")])
    assert agreed((), [one, one[:1], ()]) == (one, True)
    swapped = columns_of(through([[(b"q", b"1"), (b"p", b"1")]]).schema)
    assert agreed((), [one, swapped])[1] is False
    known = one
    more = extended(known, {"p": ColumnType("double"), "r": ColumnType("string")})
    assert agreed(known, [more, known]) == (more, True)
    twice = extended(extended((), {"p": ColumnType("bigint")}), {"p": ColumnType("string")})
    columns, same = agreed((), [twice])
    assert (same, [str(each.type) for each in columns]) == (False, ["string"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the schema is empty"),
        ("a", "invalid at 'a'"),
        ("a bigint b double", "is invalid"),
        ("a money", "'money' is not a type of a column"),
        ("a decimal(50,2)", "is not a type"),
        ("a bigint, a double", "named twice"),
    ],
)
def test_a_schema_that_is_none(text: str, told: str) -> None:
    """The error for an invalid schema names the fault."""
    with pytest.raises(ConfigError, match=told.replace("(", r"\(")):
        parse_schema(text)


def test_an_archive_keeps_its_form() -> None:
    """Options that are not given are taken from the archive.

    A contradicting one is an error with the archive's value.
    """
    made = choose(None, Wanted("delta", "day", fields=("a", "b")))
    assert choose(made, Wanted()) == choose(made, Wanted(format="delta")) == made
    assert Shape.load(made.json) == made
    assert describe(made) == "delta, by day, with columns of the fields 'a', 'b'"
    assert describe(choose(None, Wanted(schema="a int"))).endswith("with columns of a schema: 'a' bigint")
    many = choose(None, Wanted(fields=tuple(f"f{at}" for at in range(12))))
    assert describe(many).endswith("'f9' and 2 more")
    corrected = r"of the fields 'a', 'b', .*Leave these options out to go on with it, or archive into a new directory"
    with pytest.raises(ConfigError, match=corrected):
        choose(made, Wanted(fields=("a", "c")))
    for other in (Wanted("iceberg"), Wanted(partition="none"), Wanted(raw=True), Wanted(schema="a int")):
        with pytest.raises(ConfigError, match="the archive is delta, by day"):
            choose(made, other)
    assert choose(None, Wanted(raw=True, partition="hour")) == Shape(partition="hour", raw=True, columns="none")
    both = choose(None, Wanted(raw=True, fields=("*",)))
    assert (both.raw, both.columns) == (True, "all")
    for wrong in (Wanted("csv"), Wanted(partition="week"), Wanted(fields=()), Wanted(schema="a int", fields=("a",))):
        with pytest.raises(ConfigError):
            choose(None, wrong)
    with pytest.raises(ConfigError, match="only Iceberg has a catalog"):
        choose(None, Wanted(catalog="x"))


def test_folders_of_tables_are_names_that_all_tools_take() -> None:
    """Table folders have distinct names that all tools accept, without percent and equals signs."""
    names = ["orders", "orders:eu", "orders_eu", "ü/..", "_delta_log", "metadata", "x" * 500, "%41", "A", "t_1"]
    found = [table_folder(Shape("delta"), name) for name in names]
    assert found[0] == "orders"
    assert len({name.lower() for name in found}) == len(names)
    assert all(name.replace("_", "").isalnum() and name.isascii() and not name.startswith("_") for name in found)
    assert table_folder(Shape(), "ü:/..") == "stream=%C3%BC%3A%2F.."
    assert part_of(Shape(partition="month"), 1_700_000_000_000) == 2023 * 12 + 10


def test_damaged_files_say_so() -> None:
    """A file with damaged metadata or JSON is reported as damaged."""
    made = through([[(b"a", b"1"), (b"a", b"2")]])
    (batch,) = made.to_batches()
    at = batch.schema.get_field_index("entry_json")
    for text in ("[", '[["a"]]', '[["a", 1]]', "[" * 100_000, '{"a": 1}'):
        with pytest.raises(StorageError, match="is damaged"):
            entries_of(batch.set_column(at, "entry_json", pa.array([text])), columns_of(made.schema))
    for wrong in (None, {b"millstream.columns": b"[1]"}, {b"millstream.columns": b'[["a","id","bigint"]]'}):
        with pytest.raises(StorageError, match="does not say which columns"):
            columns_of(pa.schema([], wrong))
    with pytest.raises(ValueError, match="one name"):
        load_columns([["a", "x", "bigint"], ["b", "X", "bigint"]])
