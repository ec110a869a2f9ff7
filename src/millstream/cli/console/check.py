"""``millstream check``: compare figures with thresholds, for Nagios, Prometheus and scripts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import click

from millstream.cli.console.checked import STYLES, exit_code
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import url_option
from millstream.cli.shared.time_options import SPAN_HELP
from millstream.client.line import Line
from millstream.client.url import db_label
from millstream.errors import Disconnected, MillstreamError, UsageError
from millstream.ops.findings import check as model
from millstream.ops.findings.causes import Cause
from millstream.ops.findings.check import AGES, CheckBounds, CheckedFigure, Figure, Measured
from millstream.ops.findings.reading import count_undecided, read_causes
from millstream.ops.findings.status import LOOKED_AT
from millstream.ops.groups.owners import read_unowned
from millstream.ops.later.reading import read_counts, scheduled_streams, scheduling_keys
from millstream.ops.letters.reading import letter_streams
from millstream.ops.streams.partitioned import candidates, parts_of, read_layouts
from millstream.ops.streams.reading import overview, read, read_one
from millstream.ops.streams.status import StreamsSeen
from millstream.printable import printable
from millstream.times import span

Command = TypeVar("Command", bound=Callable[..., Any])

_CRITICAL, _UNKNOWN = 2, 3
_OFF = "off"
_COUNTED = "A count, or WARNING,CRITICAL"
_AGED = f"A length of time ({SPAN_HELP}), or WARNING,CRITICAL"


class CheckCommand(click.Command):
    """A command with the exit codes of Nagios plugins: 3 for an invalid command line, since 2 means critical."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Parse the command line; exit with code 3 if it is invalid."""
        try:
            return super().make_context(*args, **options)
        except click.UsageError as error:
            error.show()
            sys.exit(_UNKNOWN)


def _thresholds(command: Command) -> Command:
    """Add one option for each figure."""
    for figure, default, text in (
        ("overdue", _OFF, f"Time since the first schedule of a stream was due. {_AGED}."),
        ("dead", _OFF, f"Dead letters in a dead-letter stream. {_COUNTED}."),
        ("no-owner", "1m,10m", f"Time for which a partition has had no owner. {_AGED}."),
        ("unowned", _OFF, f"Pending entries without a consumer. {_COUNTED}."),
        ("pending-age", "15m,2h", f"Age of the oldest pending entry that is not delayed. {_AGED}."),
        ("pending", _OFF, f"Pending entries of a group. {_COUNTED}."),
        ("behind", "5m,1h", f"Age of the oldest entry not delivered. {_AGED}."),
        ("lag", _OFF, f"Entries not delivered to a group. {_COUNTED}."),
    ):
        option = click.option(f"--{figure}", default=default, metavar="W,C", help=text)
        command = option(command)
    return command


@click.command(cls=CheckCommand)
@click.argument("stream", required=False)
@click.argument("group", required=False)
@_thresholds
@click.option(
    "--count", type=click.IntRange(0), default=10_000, help="Maximum number of entries to count if a lag is unknown."
)
@click.option(
    "-o",
    "--format",
    "form",
    type=click.Choice(("nagios", "json", "prometheus")),
    default="nagios",
    help="Output format: for Nagios and Icinga, for scripts, or for a textfile collector.",
)
@url_option
def check(stream: str | None, group: str | None, count: int, form: str, url: str, **given: str) -> None:
    """Check all groups, those of STREAM, or GROUP alone against thresholds.

    A threshold is one value (critical), or two with a comma (warning,critical); `off` disables the check. An
    unknown lag is assessed by its minimum and maximum. If they do not decide, the command counts entries by reading
    them, up to --count. If that does not decide either, the state is unknown. Each partition of a partitioned stream
    is checked alone.

    \b
    Examples:
      millstream check                                     the defaults, for all streams
      millstream check orders billing --lag 1000,10000 --behind 1m,10m
      millstream check --dead 1,100 -o json | jq -r .status
      millstream check --overdue 1m                        schedules that no worker moves
      millstream check -o prometheus > /var/lib/node_exporter/millstream.prom

    \b
    Exit codes:
      0  ok
      1  warning
      2  critical, or the server does not answer
      3  unknown, or the command line is invalid
    """
    with _ends_as_a_plugin():
        every = {figure: _bounds(figure, given) for figure in model.FIGURES}
        bounds = {figure: each for figure, each in every.items() if each is not None}
        found, causes = ask(url, lambda line: _check(line, stream, group, bounds, count))
        text = STYLES[form](found, db_label(url), causes)
        click.echo(text)
    sys.exit(exit_code(found))


async def _check(
    line: Line, stream: str | None, group: str | None, bounds: dict[Figure, CheckBounds], count: int
) -> tuple[list[CheckedFigure], list[Cause]]:
    """Return the checked figures, and the causes of those that are not ok."""
    measured, seen = await _measure(line, stream, group, bounds, count)
    found = model.check(measured, bounds)
    bad = {(one.measured.stream, one.measured.group) for one in found if one.status in {"warning", "critical"}}
    groups = [each for one in seen.streams for each in one.groups if (one.key, each.name) in bad]
    causes: list[Cause] = []
    if groups:
        with suppress(MillstreamError):  # the user may lack the rights; the figures are known
            causes = await read_causes(line, seen, groups[:LOOKED_AT])
    return found, causes


async def _measure(
    line: Line, stream: str | None, group: str | None, bounds: dict[Figure, CheckBounds], count: int
) -> tuple[list[Measured], StreamsSeen]:
    """Return the measured figures, and the streams."""
    parts = () if stream is None else await parts_of(line, stream)
    keys = parts or (() if stream is None else (stream,))
    if stream is None:
        seen = await overview(line)
    else:
        seen = await (read(line, parts) if parts else read_one(line, stream))
    if "lag" in bounds:
        seen = await count_undecided(line, seen, group, bounds["lag"], count)
    found = model.measure(seen, group, (await letter_streams(line)).of(*keys) if "dead" in bounds else None, stream)
    if "no-owner" in bounds:
        layouts = await read_layouts(line, candidates(one.key for one in seen.streams))
        unowned = await read_unowned(line, seen, layouts.values())
        found += [Measured("no-owner", *place, ms) for place, ms in unowned.items() if group in (None, place[1])]
    if "overdue" in bounds:
        names = await scheduled_streams(line) if stream is None else await scheduling_keys(line, stream) or [stream]
        found += model.overdue(await read_counts(line, names), stream)
    if stream is not None and group is not None and not any(one.group == group for one in found):
        known = ", ".join(sorted({one.name for part in seen.streams for one in part.groups}))
        has = f"its groups are: {known}" if known else "it has no groups"
        raise MillstreamError(f"the stream {stream!r} has no group {group!r}; {has}")
    return found, seen


@contextmanager
def _ends_as_a_plugin() -> Iterator[None]:
    """Convert errors to one line of output and Nagios's exit codes, without tracebacks."""
    try:
        yield
    except Disconnected as error:
        click.echo(f"MILLSTREAM CRITICAL - {printable(str(error))}".replace("|", "/"))
        sys.exit(_CRITICAL)
    except (MillstreamError, OSError) as error:
        click.echo(f"MILLSTREAM UNKNOWN - {printable(str(error))}".replace("|", "/"))
        sys.exit(_UNKNOWN)
    except KeyboardInterrupt:
        sys.exit(_UNKNOWN)


def _bounds(figure: Figure, given: dict[str, str]) -> CheckBounds | None:
    """Return the thresholds of a figure; None if its check is off."""
    word = given[figure.replace("-", "_")].strip()
    if word == _OFF:
        return None
    try:
        values = [span(part, None) if figure in AGES else int(part) for part in word.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or min(values) < 0 or values != sorted(values):
        what = "30s or 5m,1h" if figure in AGES else "100 or 100,1000"
        raise UsageError(f"--{figure} {word!r}: it must be one value or two, the lower first, such as {what}, or off")
    return CheckBounds(*values) if len(values) == 2 else CheckBounds(critical=values[0])
