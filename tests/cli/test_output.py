"""The output layer: four formats of the same facts, no colours in pipes, exit codes."""

import csv
import io
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.cli.shared.output import Column, Output, Table
from millstream.printable import printable
from millstream.texts import shown, size_text, span_text, time_text
from support.clock import own_clock

COLUMNS = (Column("key"), Column("entries", "count"), Column("size", "bytes"), Column("added_ms", "time"))
ROWS = [(b"orders", 12, 2048, 1772366400250), (b"\xff\x1b[31m", 0, None, None)]


def table(rows: object = ROWS) -> Table:
    return Table("streams", COLUMNS, iter(rows), empty="No streams.")


def drawn(form: str, rows: object = ROWS) -> str:
    out = io.StringIO()
    Output(form, out).table(table(rows))
    return out.getvalue()


@pytest.mark.parametrize("words", [("stream", "ls"), ("dead", "ls"), ("doctor",), ("spark", "show", "x")])
def test_an_option_of_other_programs_is_answered_with_ours(words: tuple[str, ...]) -> None:
    """`--json` is refused with code 2, and the error names the option for JSON."""
    done = CliRunner().invoke(main, [*words, "--json"])
    assert (done.exit_code, "No such option '--json'. Did you mean '-o json'?" in done.stderr) == (2, True)


def test_a_table_for_people() -> None:
    """A table has units and UTC times, and neither control characters, trailing spaces nor colours."""
    assert drawn("table") == (
        "KEY           ENTRIES    SIZE  ADDED\n"
        "orders             12  2.0 kB  2026-03-01T12:00:00.250Z\n"
        "\\xff\\x1b[31m        0       -  -\n"
    )
    assert drawn("table", []) == "No streams.\n"


def test_a_cell_of_megabytes_makes_no_row_as_wide() -> None:
    """A huge table cell is cut with its length and a hint to JSON, which has it whole."""
    rows = [("x" * 1_000_000, 1, 1, 1), ("y", 1, 1, 1)]
    text = drawn("table", rows)
    assert "xxx... (1,000,000 characters; -o json has all)" in text
    assert len(text) < 10_000
    assert json.loads(drawn("json", rows))[0]["key"] == "x" * 1_000_000


def test_json_for_programs() -> None:
    """JSON output is an array of objects. Bytes that are not text are base64, and an unknown value is null."""
    rows = json.loads(drawn("json"))
    assert rows[0] == {"key": "orders", "entries": 12, "size": 2048, "added_ms": 1772366400250}
    assert rows[1] == {"key": {"base64": "/xtbMzFt"}, "entries": 0, "size": None, "added_ms": None}
    assert json.loads(drawn("json", [])) == []
    assert [json.loads(line) for line in drawn("jsonl").splitlines()] == rows


def test_csv_for_programs() -> None:
    """CSV output has field names first, raw figures, and JSON in cells with several parts."""
    rows = list(csv.reader(io.StringIO(drawn("csv"))))
    assert rows == [
        ["key", "entries", "size", "added_ms"],
        ["orders", "12", "2048", "1772366400250"],
        ['{"base64": "/xtbMzFt"}', "0", "", ""],
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        (" @SUM(1)", "' @SUM(1)"),
        (b"+1", "'+1"),
        ("-1-0", "'-1-0"),
        (-1, "-1"),
        (float("-inf"), "-Infinity"),
        ("a\x1b[2J\r\tb\nc", "a\\x1b[2J\\r\\tb\nc"),
        ("a=b", "a=b"),
    ],
)
def test_a_cell_of_csv_is_no_formula_and_moves_no_cursor(value: object, expected: str) -> None:
    """A CSV cell of foreign text can be neither a formula nor a control sequence. Figures stay."""
    out = io.StringIO()
    Output("csv", out).table(Table("t", (Column("v"),), [[value]]))
    assert list(csv.reader(io.StringIO(out.getvalue()))) == [["v"], [expected]]


def test_rows_come_one_by_one() -> None:
    """Rows are printed while they are produced."""
    for form in ("table", "json", "jsonl", "csv"):
        out = io.StringIO()

        def rows(out: io.StringIO = out, form: str = form) -> object:
            for number in range(2000):
                if number == 1500:
                    assert "500" in out.getvalue(), form
                yield b"k", number, 0, 0

        Output(form, out).table(table(rows()))
        assert "1999" in out.getvalue()


def test_a_report() -> None:
    """A report prints facts and tables together in each format."""
    facts = {"directory": "data", "ok": True, "size": 1500}
    sizes = (Column("size", "bytes"),)

    def form(name: str) -> str:
        out = io.StringIO()
        Output(name, out).report(facts, [table()], sizes)
        return out.getvalue()

    assert form("table").startswith("directory  data\nok         yes\nsize       1.5 kB\n\nKEY")
    whole = json.loads(form("json"))
    assert {name: whole[name] for name in facts} == facts
    assert whole["streams"] == json.loads(drawn("json"))
    lines = [json.loads(line) for line in form("jsonl").splitlines()]
    assert lines[0] == {"table": "facts", **facts}
    assert lines[1:] == [{"table": "streams", **row} for row in whole["streams"]]
    assert form("csv") == drawn("csv")


@pytest.mark.parametrize(("empty", "expected"), [(None, ""), ("", "\n"), ("No rows.", "\nNo rows.\n")])
def test_a_report_of_a_table_without_rows(empty: str | None, expected: str) -> None:
    """A table without rows prints its empty text, a blank line or nothing, as set."""
    out = io.StringIO()
    Output("table", out).report({"ok": True}, [Table("rows", COLUMNS, [], empty)])
    assert out.getvalue() == "ok  yes\n" + expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size_text(1), "1 byte"),
        (size_text(999), "999 bytes"),
        (size_text(1_400_000), "1.4 MB"),
        (time_text(0), "1970-01-01T00:00:00.000Z"),
        (time_text(1 << 63), f"{1 << 63} ms"),
        (span_text(1.26), "1.26 ms"),
        (span_text(61_000), "1 min 1 s"),
        (span_text(86_400_000 * 5 + 3_600_000 * 4), "5 d 4 h"),
        (printable("a\x1b]0;title\x07\u202eb\nc"), "a\\x1b]0;title\\x07\\u202eb\nc"),
        (shown([b"a", None, 3]), "a, -, 3"),
        (shown({b"k": b"\x00"}), '{"k": "\\u0000"}'),
    ],
)
def test_values_as_people_read_them(text: str, expected: str) -> None:
    """Sizes, times, durations and foreign text are formatted for people."""
    assert text == expected


def program(body: str) -> str:
    return f"import sys\nfrom millstream.cli.shared.output import *\nfrom millstream.errors import *\n{body}"


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("with exits('millstream x'): Output().say('fine')", 0, "fine\n"),
        ("with exits('millstream x'): raise StorageError('no \\x1b disk')", 1, "millstream x: no \\x1b disk\n"),
        ("with exits('millstream x'): raise UsageError('not so')", 2, "millstream x: not so\n"),
        ("with exits('millstream x'): raise KeyboardInterrupt", 130, "millstream x: interrupted\n"),
    ],
    ids=["fine", "failed", "usage", "interrupted"],
)
def test_exit_codes(body: str, code: int, line: str) -> None:
    """An error is one line and an exit code, never a traceback."""
    ended = subprocess.run([sys.executable, "-c", program(body)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr, ended.stdout) == (code, line, "")


LONG = program(
    "with exits('millstream x'):\n Output('jsonl').table(Table('t', [Column('n')], ((n,) for n in range(1000000))))\n"
)


def test_a_reader_that_leaves_is_no_error() -> None:
    """A closed pipe, as with `| head`, ends quietly with code 141."""
    with subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_full_disk_behind_standard_output_is_an_error() -> None:
    """A full disk behind standard output is an error with a non-zero code."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        body = program("with exits('millstream x'): Output().report({'a': 1})")
        command = [sys.executable, "-c", body]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "millstream x: [Errno 28] No space left on device\n")


def test_progress_is_silent_for_quick_work_and_speaks_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress prints nothing for quick work, and a line now and then for long work without a terminal."""
    now = [0.0]
    own_clock(monkeypatch, "millstream.cli.shared.output", monotonic=lambda: now[0])
    out, err = io.StringIO(), io.StringIO()
    with Output("json", out, err).progress({"check": "Checking"}) as tell:
        tell("check", 1, 10)
        assert err.getvalue() == ""
        now[0] += 11
        tell("check", 5_000_000, 10_000_000)
        tell("check", 6_000_000, 10_000_000)
    assert err.getvalue() == "Checking: 5.0 MB of 10.0 MB (50 %)\n"
    assert out.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_and_bars_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bold headings and progress bars appear on a terminal only."""
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    Output("table", out).table(table())
    assert "\x1b[1m" in out.getvalue()
    now = [0.0]
    own_clock(monkeypatch, "millstream.cli.shared.output", monotonic=lambda: now[0])
    err = Terminal()
    with Output("json", Terminal(), err).progress({"check": "Checking"}) as tell:
        now[0] += 1
        tell("check", 5, 10)
    assert "Checking" in err.getvalue()
    assert "\x1b[" not in drawn("table")
