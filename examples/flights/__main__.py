"""``make demo``: the whole path on real data, with checks."""

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from millstream.cli.shared.extras import check_extra
from millstream.cli.shared.output import FAILED, INTERRUPTED, OK, Output, exits
from millstream.cli.shared.paths import LocalPath
from millstream.cli.shared.servers import ServerUrl
from millstream.errors import UsageError

if TYPE_CHECKING:
    from flights.checks.result import Result


@click.command(name="flights", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", type=int, metavar="N", help="Only the first N flights of the year (1,000 or more).")
@click.option(
    "--url",
    type=ServerUrl(secret=True),
    metavar="URL",
    help="A running server (redis://, rediss://, unix://) instead of our own.",
)
@click.option(
    "--out",
    type=LocalPath(),
    default=Path("demo-out"),
    show_default=True,
    metavar="DIR",
    help="Output folder; it replaces the files of an earlier run.",
)
@click.option(
    "--kill-server", is_flag=True, help="Kill our server half-way by SIGKILL, and start it again on its data."
)
@click.option("--keep", is_flag=True, help="With --url: leave the run's keys on the server.")
@click.option("--console", is_flag=True, help="Show the run in the browser; prints the address of the pages.")
@click.option(
    "--stay", is_flag=True, help="With --console: leave the pages and the server open at the end, until Ctrl-C."
)
def demo(
    *, rows: int | None, url: str | None, out: Path, kill_server: bool, keep: bool, console: bool, stay: bool
) -> None:
    """A year of real flights through stream, workers and Spark, checked.

    Replays the 336,776 flights that were due to leave New York in 2013 as events through a durable stream. Three
    worker processes share them and raise alerts; one is killed while it holds entries, which the others claim. A Spark
    pipeline writes hourly delays to Parquet and the busiest routes back to a stream. Every figure is then compared
    with one computed from the source file alone.

    \b
    Open demo-out/page.html at the end. The folder also has:
      parquet/      the pipeline's tables
      data/         the server's data: millstream serve --dir demo-out/data
      checks.json   the table of checks
      logs/         one log for each process

    \b
    Examples:
      make demo                                           the whole year
      make demo ARGS="--rows 20000"                       the first weeks, in under a minute
      make demo ARGS="--console --stay"                   in the browser: streams, workers, the killed one, Spark
      make demo ARGS=--kill-server                        the server is killed too, half-way
      make demo ARGS="--url redis://127.0.0.1:6379"       the same against Redis, under keys of its own

    Exit code: 0 if every check holds, 1 if one fails or the run breaks, 2 if it cannot start (it reports the
    reason at once), 130 after Ctrl-C. Needs a Java 17+ runtime and: pip install -e '.[demo]'.
    """
    with exits("flights", extra="demo"):
        from flights import report, run  # noqa: PLC0415 - the help must not wait for pandas
        from flights.page import document  # noqa: PLC0415 - as above
        from flights.settings import DemoSettings, Keys  # noqa: PLC0415 - as above

        prefix = f"millstream-demo:{secrets.token_hex(4)}:" if url else ""
        _check_console(console=console, stay=stay)
        settings = DemoSettings(out.resolve(), Keys.under(prefix), rows, url, kill_server, keep, console, stay)

        def show(result: "Result") -> None:
            result.write()
            report.show(result, document.write(result), Console())

        try:
            result = run.run(settings, Console(stderr=True), show)
        except KeyboardInterrupt:
            Output().say("flights: stopped; every process it had started has ended")
            sys.exit(INTERRUPTED)
    sys.exit(OK if result.ok else FAILED)


def _check_console(*, console: bool, stay: bool) -> None:
    """Check the options of the console before the slow parts start."""
    if stay and not console:
        raise UsageError("--stay leaves the pages of --console open: give both")
    if console:
        check_extra("console", "--console")


if __name__ == "__main__":
    demo()
