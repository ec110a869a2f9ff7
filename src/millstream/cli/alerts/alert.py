"""``millstream alert``: list past alerts, watch a server, and test the notification hooks."""

import asyncio
import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, exits, show_options, subcommand, url_option
from millstream.cli.shared.secret_files import first_line
from millstream.cli.shared.signals import stopped_by_signal
from millstream.cli.shared.time_options import span
from millstream.client.line import Line
from millstream.client.url import check_remote, find_url
from millstream.errors import UsageError
from millstream.ops.alerts.reading import read_alerts
from millstream.ops.alerts.status import Alert, AlertEvent, AlertsSeen, alert_facts
from millstream.ops.history.keeping import keeping
from millstream.ops.notifying.hooks import CommandHook, Hook, HookError, note_of, webhook
from millstream.ops.notifying.quiet import QuietHours, quiet_hours
from millstream.ops.notifying.watcher import AlertWatcher
from millstream.ops.parameters import now_ms
from millstream.ops.watching.servers import ConsoleServer
from millstream.printable import printable

Command = TypeVar("Command", bound=Callable[..., Any])

_SECRET = "MILLSTREAM_ALERT_SECRET"  # noqa: S105 - the name of a variable
_STANDS_BY = (
    "It stands by: another watcher has the lease, and notifies its own hooks alone. "
    "This one writes and notifies when that one ends."
)
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
_ALERTS = (
    Column("opened_ms", "time", "opened"),
    Column("for_ms", "span", "lasted"),
    Column("closed_ms", "time", "closed", people="never"),
    Column("since_ms", "time", "since", people="never"),
    Column("state"),
    Column("level", rank=1),
    Column("code", people="never"),
    Column("says", "prose", "problem"),
    Column("affects", people="never"),
    Column("remedy", "prose", rank=2),
    Column("id", people="never"),
)


@subcommand()
@click.option("--limit", type=click.IntRange(1), default=50, help="Maximum number of alerts shown.")
@show_options
def ls(limit: int, url: str | None, form: str) -> None:
    """List open and past alerts, the open ones first: event, time and duration.

    `millstream alert watch` writes them.

    \b
    Examples:
      millstream alert ls
      millstream alert ls -o json | jq '.[] | select(.state == "open")'
    """

    async def work(line: Line) -> tuple[AlertsSeen, int]:
        return await read_alerts(line), line.wall_time()

    seen, now_ms = ask(url, work)
    output = Output(form)
    if seen.why is not None:
        output.say(f"The alerts are not known: {seen.why}")
    rows = [
        {**alert_facts(one, now_ms), "state": "open" if one.closed_ms is None else "closed"}
        for one in seen.alerts[:limit]
    ]
    output.table(Table("alerts", _ALERTS, rows, empty="No alerts. `millstream alert watch` writes them."))
    if seen.note:
        output.say(seen.note)
    if len(seen.alerts) > limit:
        output.say(f"There are {len(seen.alerts)}; --limit {len(seen.alerts)} shows all.")


def _hook_options(command: Command) -> Command:
    """Add the options that name the hooks."""
    for option in (
        click.option("--command", metavar="COMMAND", help="Program and arguments that get the message as JSON."),
        click.option("--secret-file", type=_FILE, help=f"File with the secret in its first line; or set {_SECRET}."),
        click.option(
            "--webhook",
            metavar="URL|@FILE",
            envvar="MILLSTREAM_ALERT_WEBHOOK",
            help="URL that gets a signed POST, or a file with the URL; or set MILLSTREAM_ALERT_WEBHOOK.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@_hook_options
@click.option("--quiet", metavar="HH:MM-HH:MM", help="Time of each day without notifications; they follow later.")
@click.option("--time-zone", default="UTC", metavar="NAME", help="Time zone of --quiet, such as Europe/Vienna.")
@click.option(
    "--level",
    type=click.Choice(("problem", "warning")),
    default="warning",
    help="Lowest level of alerts that hooks are told of.",
)
@click.option("--every", default="10s", metavar="SPAN", help="Interval between two looks at the server.")
@click.option(
    "--history",
    is_flag=True,
    help="Write a history of the server for the console's charts too, up to 50 MB, whenever no other process does.",
)
@url_option
def watch(  # noqa: PLR0917 - click passes every option by name
    webhook: str | None,
    secret_file: Path | None,
    command: str | None,
    quiet: str | None,
    time_zone: str,
    level: str,
    every: str,
    history: bool,
    url: str | None,
) -> None:
    """Watch a server until SIGTERM or Ctrl-C: keep alerts that open and close, and notify hooks.

    An alert opens when a cause (docs/console.md) lasts for ten seconds. It closes when the cause is absent for a
    minute, or longer if it returns again and again. Alerts are entries of the stream millstream:alerts, which keeps
    about the last 1,000. Several watchers may run: one writes and notifies, and another takes over when that one ends.

    A webhook gets a POST of JSON, signed with a shared secret. A command gets the JSON on standard input; no shell
    runs. Neither gets payloads or secrets.

    With --history, charts have data also if no worker of Millstream runs and no console is open (docs/console.md).

    \b
    Examples:
      millstream alert watch
      millstream alert watch --webhook https://alerts.example.org/millstream --secret-file alert.secret
      millstream alert watch --command 'notify --team ops' --quiet 22:00-07:00 --time-zone Europe/Vienna

    \b
    Exit codes:
      0  stopped by a signal
      1  the watcher failed
      2  the command line is invalid
    """
    with exits("millstream alert watch"):
        pause = span("--every", every) / 1000
        if pause < 1:
            raise UsageError(f"--every {every!r} is invalid: it must be at least one second. Give a longer time.")
        hours = None if quiet is None else quiet_hours(quiet, time_zone)
        server = ConsoleServer(check_remote(find_url(url)))
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level="INFO")
        hooks = _hooks(webhook, secret_file, command)

        async def work() -> None:
            async with keeping(server.url) if history else contextlib.nullcontext():
                await _watch(server, hooks, pause, hours, level)

        asyncio.run(work())


async def _watch(server: ConsoleServer, hooks: list[Hook], every: float, quiet: QuietHours | None, level: str) -> None:
    stop, output = stopped_by_signal(), Output()

    def said(event: AlertEvent) -> None:
        output.say(printable(f"{event.became}: {event.alert.level}: {event.alert.says}"))

    def stands_by(is_idle: bool) -> None:
        output.say(_STANDS_BY if is_idle else "It writes and notifies now.")

    places = ", ".join(f"the {one.name} {one.place}" for one in hooks) or "no hook"
    output.say(f"Watches {server.address} and notifies {places}; Ctrl-C ends it.")
    watcher = AlertWatcher(server, hooks, every=every, quiet=quiet, level=level, said=said, stands_by=stands_by)
    await watcher.run(stop)


@click.command()
@_hook_options
@url_option
def test(webhook: str | None, secret_file: Path | None, command: str | None, url: str | None) -> None:
    """Send a test message to the hooks, once and without a server, and print the result of each.

    \b
    Examples:
      millstream alert test --webhook https://alerts.example.org/millstream --secret-file alert.secret
      millstream alert test --command 'notify --team ops'

    \b
    Exit codes:
      0  every hook was told
      1  a hook was not told
      2  the command line is invalid
    """
    with exits("millstream alert test"):
        hooks = _hooks(webhook, secret_file, command)
        if not hooks:
            raise UsageError("there is no hook to test: give --webhook or --command.")
        failed = asyncio.run(_test(hooks, ConsoleServer(find_url(url)).name))
    sys.exit(1 if failed else 0)


async def _test(hooks: list[Hook], server: str) -> int:
    """Tell each hook once; return the number of those that were not told."""
    at_ms, failed = now_ms(), 0
    alert = Alert("test", "test", "warning", "a test message of millstream alert test", at_ms, at_ms)
    for hook in hooks:
        try:
            await hook.send(note_of(AlertEvent("test", alert), server, at_ms))
        except HookError as error:
            failed += 1
            Output().say(f"{hook.name}: failed: {error}")
        else:
            Output().say(f"{hook.name}: sent to {hook.place}")
    return failed


def _hooks(url: str | None, secret_file: Path | None, command: str | None) -> list[Hook]:
    """Return the hooks that the options name."""
    hooks: list[Hook] = []
    if url:
        found = first_line(Path(url[1:])) if url.startswith("@") else url
        secret = os.environ.get(_SECRET, "") if secret_file is None else first_line(secret_file)
        hooks.append(webhook(found, secret))
    if command is not None:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--command is invalid: {error}. Correct its quotes.") from None
        if not words:
            raise UsageError("--command is invalid: it names no program. Give a program.")
        hooks.append(CommandHook(words))
    return hooks
