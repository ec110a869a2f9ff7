"""``millstream top``: the console in the terminal."""

import asyncio
import os
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from millstream.cli.changes.changing import actor
from millstream.cli.console.servers import check_changes, given_servers
from millstream.cli.shared.output import Output, context_option, exits
from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.console.top.settings import TopSettings

_SIZE = (120, 40)  # of a snapshot where no terminal says how wide a line may be


@click.command(context_settings={"max_content_width": 110})
@click.argument("url", required=False)
@click.option("--allow-changes", is_flag=True, help="Let changes be made; each shows first what it does, and asks.")
@click.option("--view", metavar="VIEW", default="overview", show_default=True, help="Which one first: see below.")
@click.option("--snapshot", metavar="FILE", help="Write the view as text, for a ticket, and end; - is standard output.")
@context_option
def top(url: str | None, allow_changes: bool, view: str, snapshot: str | None) -> None:
    """Watch streams, groups, pending entries, dead letters, workers and the server in the terminal, live.

    What needs a person comes first. Arrows and Enter lead on, Escape back, `/` filters, `s` sorts, `:` goes to a name,
    `a` changes something, `?` lists all keys. The line at the foot shows the same in the shell. It changes nothing
    unless started with --allow-changes. URL is a server's, context:NAME or report:FILE; without one it is as
    `millstream config show` says. A password belongs into MILLSTREAM_URL or a context.

    VIEW is overview, dead, workers, server, `stream STREAM`, `group STREAM GROUP`, or a part of a name.

    \b
    Examples:
      millstream top
      millstream top redis://127.0.0.1:6400/0 --allow-changes
      millstream top --view 'group orders billing'
      millstream top --view dead --snapshot ticket.txt

    Exit code: 0 ended as asked, 1 it could not start, 2 the command line is invalid, 3 no server, 4 nothing of that
    name, 5 refused, 130 interrupted.
    """
    with exits("millstream top", extra="console"):
        from millstream.console.top.settings import TopSettings  # noqa: PLC0415 - as above
        from millstream.console.top.views.every import place_of_words  # noqa: PLC0415 - as above
        from millstream.console.watching.servers import ConsoleServer  # noqa: PLC0415 - as above
        from millstream.printable import without_password  # noqa: PLC0415 - help does not need it

        found, *others = given_servers(() if url is None else (url,))
        if others:
            raise UsageError(
                f"{without_password(url or '')} names {len(others) + 1} servers, and a terminal shows one: name that"
            )
        if allow_changes:
            check_changes([found.url])
        who = replace(actor(), via="top") if allow_changes else None
        settings = TopSettings(ConsoleServer(found.url, found.context), who, place_of_words(view))
        if snapshot is not None:
            _write(settings, snapshot)
        else:
            _run(settings)


def _run(settings: "TopSettings") -> None:
    """Show it until somebody quits.

    Raises:
        UsageError: nobody can look at it here.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise UsageError(
            "this is no terminal that a view can be drawn on: `millstream check` says what is wrong, `millstream "
            "stream ls --watch` goes on line by line, and --snapshot FILE writes a view as text"
        )
    from millstream.console.top.app import TopApp  # noqa: PLC0415 - as above

    app = TopApp(settings)
    app.run()
    if app.return_code:
        sys.exit(app.return_code)


def _write(settings: "TopSettings", name: str) -> None:
    from millstream.console.top.snapshot import snapshot  # noqa: PLC0415 - as above

    text = asyncio.run(snapshot(settings, shutil.get_terminal_size(_SIZE).columns))
    with click.open_file(name, "w", encoding="utf-8", errors="backslashreplace") as out:
        out.write(text)
    if name != "-":
        Output().say(f"The view is in {name}.")
