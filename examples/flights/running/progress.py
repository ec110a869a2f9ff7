"""The display of the progress: bars on a terminal, otherwise a line every few seconds."""

import time
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from flights.running.sample import Sample

PLAIN_EVERY = 3.0
"""Seconds between lines without a terminal."""

SAME_EVERY = 15.0
"""Seconds between lines without a terminal while no figure changes."""


class ProgressBoard(Protocol):
    """A display of the progress."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, sample: Sample) -> None:
        """Show the present state."""
        ...

    def note(self, text: str) -> None:
        """Print an event that stays on the screen."""
        ...


class PlainBoard:
    """Lines of text."""

    def __init__(self, console: Console, totals: Sample) -> None:
        self._console = console
        self._totals = totals
        self._started = time.monotonic()
        self._last = 0.0
        self._shown = Sample()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def show(self, sample: Sample) -> None:
        """Print a line, unless one was printed a moment ago."""
        now = time.monotonic()
        figures = replace(sample, at=0)
        if now - self._last < (PLAIN_EVERY if figures != self._shown else SAME_EVERY):
            return
        self._last, self._shown = now, figures
        self.note(
            f"published {sample.published:,}/{self._totals.published:,}  handled {sample.handled:,}  "
            f"pending {sample.pending:,}  alerts {sample.alerts:,}  dead letters {sample.dead:,}  "
            f"Spark {sample.spark:,}"
        )

    def note(self, text: str) -> None:
        """Print a line with the time since the start."""
        elapsed = time.monotonic() - self._started
        self._console.print(f"{elapsed:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)


class BarBoard:
    """Bars that move."""

    def __init__(self, console: Console, totals: Sample) -> None:
        self._started = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:>9,.0f} of {task.total:,.0f}", justify="right"),
            TextColumn("{task.fields[more]:<24}", style="dim"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        rows = [
            ("published", "published", totals.published),
            ("handled", "handled by 3 workers", totals.handled),
            ("alerts", "alerts raised", totals.alerts),
            ("dead", "dead letters", totals.dead),
            ("spark", "read by Spark", totals.spark),
        ]
        self._tasks = {name: self._progress.add_task(text, total=total, more="") for name, text, total in rows}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, sample: Sample) -> None:
        """Move the bars."""
        more = {"handled": f"{sample.pending:,} pending, lag {sample.lag:,}"}
        for name, task in self._tasks.items():
            found, total = getattr(sample, name), self._progress.tasks[task].total or 0
            # A claimed event may raise its alert a second time: the checks count those, the bar only shows them
            again = f"{found - total:,.0f} raised again" if found > total else ""
            self._progress.update(task, completed=min(found, total), more=more.get(name, again))

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        elapsed = time.monotonic() - self._started
        self._progress.console.print(f"[dim]{elapsed:6.1f} s[/dim]  {escape(text)}", highlight=False)


def board(console: Console, totals: Sample) -> ProgressBoard:
    """Return the display that suits ``console``; ``totals`` are the expected final figures."""
    return BarBoard(console, totals) if console.is_terminal else PlainBoard(console, totals)
