"""``--watch``: repeat the same request over one connection until Ctrl-C.

On a terminal each result replaces the previous one; elsewhere it follows it. If the server is down, the command reports
that and tries again.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from millstream.cli.shared.asking import ask, ask_all
from millstream.cli.shared.output import Output, show_options
from millstream.client.line import Line
from millstream.errors import Disconnected

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

_EVERY = "2"
_CLEAR = "\x1b[H\x1b[2J"


def watch_option(command: Command) -> Command:
    """Add the option ``--watch``; its argument is None if it is not given."""
    return click.option(
        "--watch",
        type=click.FloatRange(0.1),
        is_flag=False,
        flag_value=_EVERY,
        metavar="[SECONDS]",
        help=f"Refresh every SECONDS until Ctrl-C; every {_EVERY} seconds if no number is given.",
    )(command)


def watch_options(command: Command) -> Command:
    """Add the options of a command that shows facts of a server, once or repeatedly."""
    return watch_option(show_options(command))


def look(
    url: str | None,
    every: float | None,
    work: Callable[[Line], Awaitable[T]],
    show: Callable[[T, T | None], None],
    form: str,
) -> None:
    """Read and show facts of a server, once or repeatedly."""
    if every is None:
        show(ask(url, work), None)
        return

    async def again(line: Line) -> None:
        before: T | None = None
        while True:
            try:
                found = await work(line)
            except Disconnected as error:
                if before is None:
                    raise
                Output().say(f"the server does not answer ({error}); trying again every {every:g} s")
            else:
                _clear(form)
                show(found, before)
                sys.stdout.flush()
                before = found
            await asyncio.sleep(every)

    ask(url, again)


def look_at_all(
    urls: Sequence[str],
    every: float | None,
    work: Callable[[Mapping[str, Line]], Awaitable[T]],
    show: Callable[[T], None],
    form: str,
) -> None:
    """Read and show facts of several servers at once, once or repeatedly."""

    async def again(lines: Mapping[str, Line]) -> None:
        while True:
            found = await work(lines)
            if every is not None:
                _clear(form)
            show(found)
            if every is None:
                return
            sys.stdout.flush()
            await asyncio.sleep(every)

    ask_all(urls, again)


def _clear(form: str) -> None:
    if form == "table" and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        sys.stdout.write(_CLEAR)
