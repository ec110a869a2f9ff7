"""Output of a subcommand: the same facts as a table, JSON, JSON lines or CSV; progress and exit codes.

Facts go to standard output and everything else to standard error. A table is for people: units, times in UTC, colours
on a terminal only, as many columns as fit there. The other three are for programs. Field names never change their
meaning, times are milliseconds since 1970, sizes are bytes, durations are milliseconds, and unknown values are null.
Keys and values may contain any bytes: UTF-8 is shown as text, other bytes as ``{"base64": "..."}``. Characters that
could move a terminal's cursor are escaped (``millstream.texts``).

rich is loaded only to draw a table or a progress bar.
"""

import csv
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, compress, islice
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import click

from millstream.cli.shared.extras import advice
from millstream.errors import MillstreamError
from millstream.printable import printable, without_secrets
from millstream.scales import GAP, Need, fit
from millstream.texts import Kind, csv_cell, in_one_line, json_text, shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

EXIT_CODES = {
    0: "done, or there was nothing to do",
    1: "the command failed, wholly or in part",
    2: "the command line is invalid, or the confirmation was declined",
    3: "the server cannot be reached, or the connection broke",
    4: "the named object does not exist",
    5: "refused by the server, by the user's rights, or by a check",
    130: "interrupted",
    141: "the reader of the output ended, as with `| head`",
}
"""Exit codes of all subcommands that connect to a server. An error class has its own as ``exit_code``."""

EXIT_LIST = "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())
"""List of exit codes below the help of nouns."""

OK, FAILED, USAGE, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 130, 141

FORMATS = ("table", "json", "jsonl", "csv")

Tell = Callable[[str, int, int], None]
"""Callback with the current activity, the amount done, and the total amount."""

Command = TypeVar("Command", bound=Callable[..., Any])

_PAGE = 500  # rows of a table that are laid out together, so that long tables need no more memory
_WIDEST = 2000  # characters of a table cell: a forged value may have megabytes
_QUIET = 0.5  # seconds before a progress bar is drawn: quick work shows none
_LINE_EVERY = 10.0  # seconds between progress lines if there is no terminal


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str  # Field name in JSON and CSV; never changed once released
    # Kind of the values: ``time`` and ``span`` are milliseconds, ``bytes`` is a size, ``prose`` may be wrapped
    kind: Kind = "text"
    title: str = ""  # Heading for people; the default is the name with spaces
    rank: int = 0  # Columns with the highest rank are left out first on a narrow terminal; 0 always stays
    people: Literal["always", "filled", "never"] = "always"  # Shown to people; ``filled`` only if a row has a value

    @property
    def heading(self) -> str:
        """Heading of the column in a table."""
        return self.title or self.name.removesuffix("_ms").replace("_", " ")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with named columns. A row has its values in the order of the columns, or by name."""

    name: str  # Field name in JSON
    columns: Sequence[Column]  # Columns in display order
    rows: Iterable[object]  # May be an iterator, which is read once
    empty: str | None = None  # Line for people if there are no rows; None hides the empty table
    hidden: Collection[str] = ()  # Names of further columns that are hidden from people


def output_option(command: Command) -> Command:
    """Add the option ``-o``/``--format`` of every subcommand that shows facts; its argument is ``form``."""
    option = click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice(FORMATS),
        default="table",
        help="Output format; json, jsonl and csv are for programs.",
    )
    return option(command)


def url_option(command: Command) -> Command:
    """Add the options ``--url`` and ``--context`` of every subcommand with a server; the argument is ``url`` alone."""
    url = click.option(
        "--url", callback=_of("given_url"), help="URL of the server.  [default: see `millstream config show`]"
    )
    return context_option(url(command))


def show_options(command: Command) -> Command:
    """Add the options of a command that shows facts of a server: ``url_option`` and ``output_option``."""
    return url_option(output_option(command))


def context_option(command: Command) -> Command:
    """Add the option ``--context``, for commands whose ``--url`` has a different meaning."""
    option = click.option(
        "--context",
        metavar="NAME",
        is_eager=True,  # the callback of --url reads the value that this option stored
        expose_value=False,
        callback=_of("given_context"),
        help="Named server to use; `millstream context ls` lists them.",
    )
    return option(command)


def _of(name: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a callback of ``servers.py``, which is loaded when an option is read, and not for help."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        from millstream.cli.shared import servers  # noqa: PLC0415 - that module imports this one

        found: str | None = getattr(servers, name)(ctx, param, value)
        return found

    return callback


class Output:
    """The output of a subcommand."""

    def __init__(self, form: str = "table", out: IO[str] | None = None, err: IO[str] | None = None) -> None:
        self.form = form
        self._out = out or sys.stdout
        self._err = err or sys.stderr

    def say(self, text: str) -> None:
        """Print a line for people to standard error."""
        print(printable(text), file=self._err, flush=True)

    def table(self, table: Table) -> None:
        """Print one table, row by row: JSON is an array of objects, JSON lines and CSV have one line a row."""
        if self.form == "table":
            self._draw(table)
        elif self.form == "csv":
            self._csv(table)
        elif self.form == "jsonl":
            for row in _objects(table):
                self._line(json_text(row))
        else:
            self._array(_objects(table))

    def report(self, facts: Mapping[str, object], tables: Sequence[Table] = (), columns: Sequence[Column] = ()) -> None:
        """Print single facts and related tables.

        JSON is one object: the facts, and each table as an array under its name. JSON lines has the facts first, then
        every row, each with its table's name as ``"table"`` (``"facts"`` for the first). CSV has only the first table.
        """
        if self.form == "table":
            self._facts(facts, {column.name: column for column in columns})
            for table in tables:
                self._draw(table, "\n")
        elif self.form == "csv":
            kinds = [Column(name) for name in facts]
            self._csv(tables[0] if tables else Table("facts", kinds, [facts]))
        elif self.form == "jsonl":
            self._line(json_text({"table": "facts", **facts}))
            for table in tables:
                for row in _objects(table):
                    self._line(json_text({"table": table.name, **row}))
        else:
            whole = {**facts, **{table.name: list(_objects(table)) for table in tables}}
            self._line(json_text(whole, indent=2))

    @contextmanager
    def progress(self, names: Mapping[str, str] | None = None, *, unit: str = "bytes") -> Iterator[Tell]:
        """Show the progress of long work on standard error. The work calls the yielded function from time to time.

        On a terminal it is a bar, elsewhere a line every ten seconds. Quick work shows nothing.
        """
        bar = _Bar(self, names or {}, unit) if self._err.isatty() else _Lines(self, names or {}, unit)
        try:
            yield bar.tell
        finally:
            bar.close()

    def console(self, *, err: bool = False, width: int | None = None) -> "Console":
        """Return rich's console.

        It has colours on a terminal only (respecting NO_COLOR and TERM=dumb). Output to a pipe has no width limit.
        """
        from rich.console import Console  # noqa: PLC0415 - help and machine-readable output do not load it

        file = self._err if err else self._out
        width = width if file.isatty() else 1 << 16
        return Console(file=file, width=width, highlight=False, markup=False, emoji=False)

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")

    def _array(self, rows: Iterable[Mapping[str, object]]) -> None:
        mark = "[\n  "
        for row in rows:
            self._out.write(mark + json_text(row))
            mark = ",\n  "
        self._out.write("[]\n" if mark.startswith("[") else "\n]\n")

    def _csv(self, table: Table) -> None:
        writer = csv.writer(self._out, lineterminator="\n")
        lines = in_one_line if self._out.isatty() else printable
        writer.writerow([csv_cell(column.name, lines) for column in table.columns])
        for row in _rows(table):
            writer.writerow([csv_cell(value, lines) for value in row])

    def _facts(self, facts: Mapping[str, object], columns: Mapping[str, Column]) -> None:
        named = [(columns.get(name, Column(name)), value) for name, value in facts.items()]
        width = max((len(column.heading) for column, _ in named), default=0)
        for column, value in named:
            # Continuation lines are indented, so that none of them looks like a fact
            text = shown(value, column.kind).replace("\n", "\n" + " " * (width + 2))
            self._line(f"{in_one_line(column.heading):<{width}}  {text}".rstrip())

    def _draw(self, table: Table, lead: str = "") -> None:
        """Draw a table, a page of rows at a time."""
        columns, rows = _for_people(table)
        first = next(rows, None)
        if first is None:
            if table.empty is not None:
                self._out.write(lead + (table.empty and table.empty + "\n"))
            return
        self._out.write(lead)
        rows, left_out = chain([first], rows), list[str]()
        while page := list(islice(rows, _PAGE)):
            cells = [[_cell(v, c.kind) for c, v in zip(columns, row, strict=True)] for row in page]
            widths = fit(_needs(columns, cells), self.console().width)
            self._page(columns, cells, widths)
            left_out = left_out or [c.heading for at, c in enumerate(columns) if at not in widths]
        if left_out:
            self.say(f"({', '.join(left_out)}: no room here; a wider terminal, or -o json, shows them)")

    def _page(self, columns: Sequence[Column], rows: list[list[str]], widths: Mapping[int, int]) -> None:
        from rich import table, text  # noqa: PLC0415 - as in console()

        # Wide enough for unbroken cells: the terminal wraps such a line, and a copied line stays whole
        console = self.console(width=max(self.console().width, sum(widths.values()) + GAP * len(widths)))
        grid = table.Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        for at, width in widths.items():
            figure = columns[at].kind in {"count", "bytes", "span"}
            heading = text.Text(in_one_line(columns[at].heading.upper()))
            grid.add_column(heading, justify="right" if figure else "left", overflow="fold", width=width)
        for row in rows:
            grid.add_row(*(text.Text(row[at]) for at in widths))
        if self._out.isatty():
            console.print(grid)
            return
        with console.capture() as drawn:
            console.print(grid)
        for line in drawn.get().splitlines():
            self._line(line.rstrip())


class _Bar:
    """Progress bar on a terminal."""

    def __init__(self, output: Output, names: Mapping[str, str], unit: str) -> None:
        self._output, self._names, self._unit = output, names, unit
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._tasks: dict[str, Any] = {}

    def tell(self, doing: str, done: int, total: int) -> None:
        """Show the progress; see :data:`Tell`."""
        if self._bar is None:
            if time.monotonic() - self._began < _QUIET:
                return
            self._bar = self._start()
        if doing not in self._tasks:
            self._tasks[doing] = self._bar.add_task(self._names.get(doing, doing), total=total)
        self._bar.update(self._tasks[doing], completed=done, total=total)

    def close(self) -> None:
        """Remove the bar and restore the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _start(self) -> "Progress":
        from rich import progress  # noqa: PLC0415 - as in Output.console()

        amount = progress.DownloadColumn() if self._unit == "bytes" else progress.MofNCompleteColumn()
        columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), amount)
        bar = progress.Progress(*columns, progress.TimeRemainingColumn(), console=self._output.console(err=True))
        bar.start()
        return bar


class _Lines:
    """Progress as lines, without a terminal."""

    def __init__(self, output: Output, names: Mapping[str, str], unit: str) -> None:
        self._output, self._names, self._unit = output, names, unit
        self._last = time.monotonic()

    def tell(self, doing: str, done: int, total: int) -> None:
        """Print the progress every ten seconds; see :data:`Tell`."""
        now = time.monotonic()
        if now - self._last < _LINE_EVERY:
            return
        self._last = now
        kind: Kind = "bytes" if self._unit == "bytes" else "count"
        unit = "" if self._unit == "bytes" else f" {self._unit}"
        share = f" ({100 * done // total} %)" if total else ""
        name = self._names.get(doing, doing)
        self._output.say(f"{name}: {shown(done, kind)} of {shown(total, kind)}{unit}{share}")

    def close(self) -> None:
        """Do nothing: lines need no cleanup."""


def _drop_unwritable_output() -> None:
    """Drop output that standard output refuses.

    Otherwise Python would try again at its end, and exit with 120 from 3.13 on.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def exits(command: str, extra: str | None = None) -> Iterator[None]:
    """End the process with the exit code of an error inside the block, without a traceback."""
    try:
        yield
        if sys.stdout is not None:  # it is None if standard output was closed at the start
            sys.stdout.flush()  # detects a full disk behind standard output before the exit code is set
    except (MillstreamError, OSError, ModuleNotFoundError) as error:
        if isinstance(error, OSError):
            _drop_unwritable_output()
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as `| head` does
            sys.exit(CLOSED_PIPE)
        known = advice(error, extra) if isinstance(error, ModuleNotFoundError) else error
        if known is None:  # an error in the user's module, or a bug: the traceback is the best report
            raise
        text = str(known)
        if isinstance(known, OSError) and known.filename and known.strerror:  # Python adds an error number
            text = f"{known.filename} cannot be used: {known.strerror}"
        print(f"{command}: {printable(without_secrets(text))}", file=sys.stderr)  # noqa: T201 - what this module is for
        sys.exit(known.exit_code if isinstance(known, MillstreamError) else FAILED)
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr)  # noqa: T201 - this module prints errors
        sys.exit(INTERRUPTED)


class Subcommand(click.Command):
    """A command that ends as :func:`exits` does, under the name that was typed."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Its output is flushed before the process ends with an exit code."""
        names, at, code = list[str](), ctx, None
        while at.parent is not None:
            names.insert(0, at.info_name or "")
            at = at.parent
        with exits(" ".join(["millstream", *names])):
            try:
                return super().invoke(ctx)
            except SystemExit as end:
                code = end.code
        sys.exit(code)


def subcommand(name: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a :class:`Subcommand`, as ``click.command`` does for other commands."""
    return click.command(name, cls=Subcommand, **options)


def _cell(value: object, kind: Kind) -> str:
    """Return a value as a table cell. A very long value is cut, since it would widen every row."""
    text = in_one_line(shown(value, kind))
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}... ({len(text):,} characters; -o json has all)"


def _rows(table: Table) -> Iterator[Sequence[object]]:
    """Yield the values of each row in the order of the columns."""
    names = [column.name for column in table.columns]
    for row in table.rows:
        if isinstance(row, Mapping):
            yield [row[name] for name in names]
        else:
            yield row if isinstance(row, Sequence) else [getattr(row, name) for name in names]


def _for_people(table: Table) -> tuple[list[Column], Iterator[Sequence[object]]]:
    """Return the columns that people see, and their rows."""
    columns, rows = table.columns, _rows(table)
    shown = [column.people != "never" and column.name not in table.hidden for column in columns]
    if any(column.people == "filled" for column in columns):  # needs all rows
        every = list(rows)
        filled = [any(row[at] is not None and row[at] is not False for row in every) for at in range(len(columns))]
        shown = [seen and (filled[at] or columns[at].people == "always") for at, seen in enumerate(shown)]
        rows = iter(every)
    return list(compress(columns, shown)), (list(compress(row, shown)) for row in rows)


def _objects(table: Table) -> Iterator[dict[str, object]]:
    names = [column.name for column in table.columns]
    for row in _rows(table):
        yield dict(zip(names, row, strict=True))


def _needs(columns: Sequence[Column], rows: list[list[str]]) -> list[Need]:
    """Return the width that each column needs."""
    from rich.cells import cell_len  # noqa: PLC0415 - as in Output.console()

    needs = []
    for at, column in enumerate(columns):
        heading = cell_len(in_one_line(column.heading))
        widest = max((cell_len(row[at]) for row in rows), default=0)
        needs.append(Need(max(heading, widest), heading, column.rank, prose=column.kind == "prose"))
    return needs
