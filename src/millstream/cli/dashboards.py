"""``millstream dashboards``: files for Grafana and Prometheus, written into a folder and loaded from there."""

from pathlib import Path

import click

from millstream.cli.shared.output import Column, Output, Table, exits, output_option
from millstream.cli.shared.paths import LocalPath
from millstream.dashboards.catalogue import FILES, find, write_all

_WIDE = {"max_content_width": 110}
_FILES = (Column("name"), Column("file"), Column("tool", rank=2), Column("about", "prose", rank=1))


@click.group(context_settings=_WIDE)
def dashboards() -> None:
    """Dashboards for Grafana, and alerts and recording rules for Prometheus.

    They go by what workers show at `millstream run --health-port`, and redis_exporter about a server. No server is
    asked here.

    \b
    Examples:
      millstream dashboards ls
      millstream dashboards write monitoring                   all of them, into a folder
      millstream dashboards show alerts | promtool check rules /dev/stdin

    Exit code: 0 done, 1 not done or not all, 2 the command line is invalid, 4 nothing of that name, 5 refused, since a
    file is there already.
    """


@dashboards.command(context_settings=_WIDE)
@output_option
def ls(form: str) -> None:
    """List the files: names, places that `write` gives them, and purposes.

    \b
    Examples:
      millstream dashboards ls
      millstream dashboards ls -o json | jq -r '.[].name'
    """
    with exits("millstream dashboards ls"):
        rows = [[each.name, each.file, each.tool, each.about] for each in FILES]
        Output(form).table(Table("files", _FILES, rows))


@dashboards.command(context_settings=_WIDE)
@click.argument("name", metavar="NAME")
def show(name: str) -> None:
    """Print one file to standard output; NAME is as `ls` shows it.

    \b
    Examples:
      millstream dashboards show streams > streams.json        to be imported into Grafana
      millstream dashboards show alerts
    """
    with exits("millstream dashboards show"):
        click.echo(find(name).text(), nl=False)


@dashboards.command(context_settings=_WIDE)
@click.argument("folder", metavar="DIR", type=LocalPath())
@click.option("--force", is_flag=True, help="Replace existing files with different contents.")
def write(folder: Path, force: bool) -> None:
    """Write all files below DIR, which is made if it is not there: DIR/grafana and DIR/prometheus.

    A file that is there and is the same is left as it is. One that says something else may have been changed by
    somebody: nothing is written then, unless --force. Nor is where one is a symbolic link, with --force or without.

    \b
    Examples:
      millstream dashboards write monitoring
      millstream dashboards write monitoring --force           after an upgrade
      prometheus --config.file monitoring/prometheus/scrape.yml
    """
    with exits("millstream dashboards write"):
        written = write_all(folder, force=force)
        same = len(FILES) - len(written)
        Output().say(f"Wrote {len(written)} files below {folder}" + (f"; {same} are there already." if same else "."))
