"""``millstream doctor``: find problems of this machine, a data directory or a server, with their remedies."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import FAILED, OK, Column, Output, Table, Tell, output_option, subcommand
from millstream.cli.shared.servers import ServerUrl
from millstream.cli.shared.time_options import SPAN_HELP, span
from millstream.client.line import Line
from millstream.errors import MillstreamError, UsageError
from millstream.maintenance.health.directory import diagnose_directory
from millstream.maintenance.health.findings import Finding, worst
from millstream.maintenance.health.machine import diagnose_machine
from millstream.maintenance.health.server import Limits, diagnose_server
from millstream.ops.findings.causes import Cause, explained
from millstream.ops.findings.reading import read_causes
from millstream.ops.findings.status import worst_groups
from millstream.ops.streams.reading import overview
from millstream.ops.words import shell_line
from millstream.printable import printable
from millstream.texts import in_one_line, plural, time_text

PROBLEM = 3
_FINDINGS = (
    Column("level"),
    Column("check"),
    Column("what", "prose"),
    Column("why", "prose", rank=2),
    Column("advice", "prose", rank=1),
    Column("cause", people="never"),
)
_AFFECTED = 10  # number of groups shown for a cause
_CODES = {"ok": OK, "note": OK, "warning": FAILED, "problem": PROBLEM}


@subcommand()
@click.argument("target", required=False, type=ServerUrl(), metavar="[DIR|URL]")
@click.option(
    "--pending-older",
    metavar="SPAN",
    default="1h",
    help=f"Idle time ({SPAN_HELP}) from which pending entries, and consumers that hold some, count as abandoned.",
)
@click.option("--streams", type=click.IntRange(1), default=1000, help="Maximum number of streams to check.")
@click.option(
    "--replica",
    "replicas",
    multiple=True,
    type=ServerUrl(),
    metavar="URL",
    help="Replica to compare with the server: versions, clocks, priorities, settings; repeatable.",
)
@output_option
def doctor(target: str | None, pending_older: str, streams: int, replicas: tuple[str, ...], form: str) -> None:
    """Diagnose problems, their consequences and their remedies.

    Without an argument: this machine (versions, libraries, limits). With a data directory: also its disk (file system,
    space, measured speed of fsync), its users, and the state of its log. With the URL of a Millstream or a Redis
    (redis://, rediss://, unix://; context:NAME if it has a password): its answer, its abilities, and settings that
    lose events. These are eviction, no append-only file, and fsync. It also checks refused writes, replicas and the
    link to a primary; if there are replicas, it measures the rate of writes for a second. It lists neglected pending
    entries and consumers, groups with an unknown lag, and streams that are never trimmed. A cause that holds up groups,
    such as a frozen worker, comes first, and the findings that it explains are folded into it. Nothing is changed,
    except that a small file is written to DIR and removed, to measure its disk.

    \b
    Levels:
      ok        fine
      note      worth knowing
      warning   will cause trouble later
      problem   loses data, or does not work

    \b
    Examples:
      millstream doctor
      millstream doctor /var/lib/millstream
      millstream doctor redis://127.0.0.1:6379 --pending-older 10m
      millstream doctor redis://10.0.0.1:6379 --replica redis://10.0.0.2:6379
      millstream doctor redis://127.0.0.1:6379 -o json | jq '.[] | select(.level != "ok")'

    \b
    Exit codes:
      0  nothing worse than notes
      1  warnings
      2  the command line is invalid
      3  problems
    """
    output = Output(form)
    with output.progress({"check": "Checking the log", "read": "Reading the records"}) as tell:
        findings = list(_findings(target, span("--pending-older", pending_older), streams, replicas, tell))
    # Sentences may contain names with arbitrary bytes. Escape these, so that no whole sentence is printed as base64.
    causes = _causes(target, findings)
    known = explained(causes)
    cause_ids = [known[f.place].id if f.place is not None and f.place in known else None for f in findings]
    rows = [
        (*map(printable, (f.level, f.check, f.what, f.why, f.advice)), cause)
        for f, cause in zip(findings, cause_ids, strict=True)
    ]
    if form == "table":
        _show_causes(causes, cause_ids)
        _show(output, [f for f, cause in zip(findings, cause_ids, strict=True) if cause is None])
    else:
        output.table(Table("findings", _FINDINGS, rows))
    sys.stdout.flush()
    sys.exit(_CODES[worst(findings)])


def _causes(target: str | None, findings: list[Finding]) -> list[Cause]:
    """Return what holds up groups of a server that answers; none if its user may not read that."""
    if target is None or not any((f.level, f.check) == ("ok", "reachable") for f in findings):
        return []

    async def work(line: Line) -> list[Cause]:
        seen = await overview(line)
        return await read_causes(line, seen, worst_groups(seen))

    try:
        found = ask(target, work)
    except MillstreamError:
        return []
    known = explained(found).values()
    return [cause for cause in found if any(cause is one for one in known)]


def _show_causes(causes: list[Cause], folded: list[str | None]) -> None:
    """Show each cause with its beginning, what it holds up, and the remedy."""
    for cause in causes:
        click.echo(printable(f"{cause.level}: {cause.says}"))
        rows = [("since", "" if cause.head.since_ms is None else time_text(cause.head.since_ms))]
        rows += [("holds up", in_one_line(one.text())) for one in cause.affects[:_AFFECTED]]
        count = folded.count(cause.id)
        rows += [("explains", plural(count, "finding") if count else "")]
        rows += [("next", shell_line(cause.head.remedy or ()))]
        for lead, text in rows:
            if text:
                click.echo(printable(f"  {lead:<10}{text}"))
        click.echo()


def _findings(
    target: str | None, pending_ms: int, streams: int, replicas: tuple[str, ...], tell: Tell
) -> Iterator[Finding]:
    if target is not None and "://" in target:
        yield from diagnose_server(target, Limits(pending_ms, streams), replicas)
        return
    if replicas:
        raise UsageError("--replica goes only with the URL of a primary. Give that URL.")
    yield from diagnose_machine()
    if target is not None:
        if not target:
            raise UsageError("an empty name is not a directory")
        yield from diagnose_directory(Path(target), tell)


def _show(output: Output, findings: list[Finding]) -> None:
    """Show a good finding in one line and any other in three, since a table would be too wide."""
    output.table(Table("findings", _FINDINGS[:3], [(f.level, f.check, f.what) for f in findings]))
    for finding in findings:
        if finding.why or finding.advice:
            click.echo(printable(f"\n{finding.level}: {finding.check}: {finding.what}"))
            for lead, text in (("why", finding.why), ("next", finding.advice)):
                if text:
                    click.echo(printable(f"  {lead:<5}{text}"))
