"""``millstream dashboards``: write files for Grafana and Prometheus to a folder."""

from pathlib import Path

import click

from millstream.cli.shared.output import Column, Output, Subcommand, Table, output_option
from millstream.cli.shared.paths import LocalPath
from millstream.dashboards.catalogue import FILES, find, write_all
from millstream.texts import plural

_FILES = (Column("name"), Column("file"), Column("tool", rank=2), Column("about", "prose", rank=1))


@click.group()
def dashboards() -> None:
    """Write Grafana dashboards, and Prometheus alerts and recording rules.

    They use the metrics of `millstream run --health-port`, and those of redis_exporter for servers. These commands do
    not connect to a server.

    \b
    Examples:
      millstream dashboards ls
      millstream dashboards write monitoring                   all of them, into a folder
      millstream dashboards show alerts | promtool check rules /dev/stdin

    \b
    Exit codes:
      0  done
      1  the command failed, wholly or in part
      2  the command line is invalid
      4  no file has that name
      5  refused, since a file exists already
    """


@dashboards.command(cls=Subcommand)
@output_option
def ls(form: str) -> None:
    """List the files: name, path written by `write`, and purpose.

    \b
    Examples:
      millstream dashboards ls
      millstream dashboards ls -o json | jq -r '.[].name'
    """
    rows = [[each.name, each.file, each.tool, each.about] for each in FILES]
    Output(form).table(Table("files", _FILES, rows))


@dashboards.command(cls=Subcommand)
@click.argument("name", metavar="NAME")
def show(name: str) -> None:
    """Print the file NAME, as listed by `ls`, to standard output.

    \b
    Examples:
      millstream dashboards show streams > streams.json        to import into Grafana
      millstream dashboards show alerts
    """
    click.echo(find(name).text(), nl=False)


@dashboards.command(cls=Subcommand)
@click.argument("folder", metavar="DIR", type=LocalPath())
@click.option("--force", is_flag=True, help="Replace existing files with different contents.")
def write(folder: Path, force: bool) -> None:
    """Write all files to DIR/grafana and DIR/prometheus; create DIR if needed.

    Equal files are left unchanged. If a file has other contents, someone may have edited it: nothing is written without
    --force. If a file is a symbolic link, nothing is written, even with --force.

    \b
    Examples:
      millstream dashboards write monitoring
      millstream dashboards write monitoring --force           after an upgrade
      prometheus --config.file monitoring/prometheus/scrape.yml
    """
    written = write_all(folder, force=force)
    same = len(FILES) - len(written)
    Output().say(
        f"Wrote {plural(len(written), 'file')} below {folder}"
        + (f"; {same} {'is' if same == 1 else 'are'} there already." if same else ".")
    )
