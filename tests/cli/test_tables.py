"""Tables on narrow terminals: ids, times and figures stay whole, and omitted columns are named."""

import importlib
import io
import pkgutil
import re

import pytest
from rich.cells import cell_len

import millstream.cli
from millstream.cli.shared.output import Column, Output, Table
from millstream.scales import Need, fit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tables() -> dict[str, tuple[Column, ...]]:
    """Every table of the command line by its name in the source."""
    found = {}
    for module in pkgutil.walk_packages(millstream.cli.__path__, "millstream.cli."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, tuple) and value and all(isinstance(each, Column) for each in value):
                found[f"{module.name.removeprefix('millstream.cli.')}.{name}"] = value
    return found


ID, TIME = "1763721600000-12", 1_763_721_600_250
SHOWN_TIME = "2025-11-21T10:40:00.250Z"
SENTENCE = "ConnectionError: the card provider at pay.example.com did not answer within thirty seconds, three times"
SAMPLES = {
    "id": ID, "entry": ID, "upto": ID, "first_id": ID, "last_id": ID, "last": ID, "resumed_after": ID,
    "consumer": "web-1-4711-a1b2c3", "stream": "orders", "key": "orders:dead", "group": "billing", "handler": "bill",
}  # fmt: skip


def sample(column: Column) -> object:
    if column.kind in {"time", "span", "bytes", "count"}:
        return {"time": TIME, "span": 723_000, "bytes": 1_400_000, "count": 12_345}[column.kind]
    return SENTENCE if column.kind == "prose" else SAMPLES.get(column.name, "running")


FACTS = {  # one below the other
    *("spark.replay._COLUMNS", "worker.worker._TIMES", "worker.dead._KINDS"),
    *(f"server.{module}.TITLES" for module in ("log", "backup", "restore")),
}


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", sorted(tables().keys() - FACTS))
def test_a_table_fits_and_breaks_no_id(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No table line is wider than the terminal, only prose wraps, and omitted columns are named."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    columns = [column for column in tables()[name] if column.people != "never"]
    out, err = Terminal(), Terminal()
    Output("table", out, err).table(Table("t", columns, [[sample(column) for column in columns]] * 2))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    text = "\n".join(lines)
    for column in columns:
        shown = column.heading.upper() in lines[0]
        assert shown or column.heading in err.getvalue(), column
        assert shown or column.rank, column
        if shown and column.kind != "prose":
            value = sample(column)
            whole = SHOWN_TIME if column.kind == "time" else str(value)
            assert column.kind in {"span", "bytes"} or whole in text, column


def test_what_matters_least_goes_first() -> None:
    """Prose shrinks first, then columns go by rank, and then the table is wider than the terminal."""
    needs = [Need(20, 2), Need(24, 5, rank=2), Need(90, 5, prose=True), Need(10, 5, rank=1)]
    assert fit(needs, 200) == {0: 20, 1: 24, 2: 90, 3: 10}
    assert fit(needs, 100) == {0: 20, 1: 24, 2: 40, 3: 10}
    assert fit(needs, 83) == {0: 20, 2: 49, 3: 10}
    assert fit(needs, 60) == {0: 20, 2: 38}
    assert fit(needs, 10) == {0: 20, 2: 30}


def test_what_a_wide_column_leaves_is_used() -> None:
    """A narrow column is kept if an omitted wider one leaves room for it."""
    needs = [Need(20, 2), Need(24, 5, rank=1), Need(5, 5, rank=2), Need(6, 6, rank=3)]
    assert fit(needs, 61) == {0: 20, 1: 24, 2: 5, 3: 6}
    assert fit(needs, 60) == {0: 20, 1: 24, 2: 5}
    assert fit(needs, 50) == {0: 20, 1: 24}
    assert fit([Need(20, 2), Need(6, 6, rank=3), Need(5, 5, rank=2)], 28) == {0: 20, 2: 5}
    assert fit(needs, 43) == {0: 20, 2: 5, 3: 6}


def test_a_pipe_has_no_width() -> None:
    """Piped output has all columns in full."""
    columns = tables()["worker.worker._WORKERS"]
    out, err = io.StringIO(), io.StringIO()
    Output("table", out, err).table(Table("t", columns, [[sample(column) for column in columns]]))
    assert out.getvalue().count(SENTENCE) == sum(column.kind == "prose" for column in columns)
    assert err.getvalue() == ""


HOSTILE = "a\x1b[2J\x07\x9b31m\u202eb\x7f\r\nFAKE  ROW\udcff"


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
def test_nothing_that_is_shown_moves_a_cursor(form: str) -> None:
    """No format prints a control character on a terminal, and a table cell is one line."""
    columns = (Column(HOSTILE), Column("b", "prose"))
    for value in (HOSTILE, HOSTILE.encode(errors="surrogateescape"), [HOSTILE], {HOSTILE: HOSTILE}):
        out, err = Terminal(), Terminal()
        output = Output(form, out, err)
        output.table(Table("t", columns, [[value, value]]))
        if form != "csv":
            output.report({HOSTILE: value}, ())
        output.say(HOSTILE)
        text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue() + err.getvalue())
        assert not set(text) & set("\x1b\x07\x9b\u202e\x7f\r\udcff")
        output.table(Table("t", columns, [["x", value]]))
        assert not any(line.startswith("FAKE") for line in out.getvalue().splitlines())
