"""``millstream config``: show the server that commands use, and the source of that setting."""

import click

from millstream.cli.shared.output import Column, Output, Subcommand, Table, output_option
from millstream.cli.shared.servers import ServerChoice, ServerSource
from millstream.printable import without_password

_SETTINGS = (Column("setting"), Column("value", "prose"), Column("origin", "prose"), Column("used"))


@click.group()
def config() -> None:
    """Show the server that commands use, and the source of that setting.

    \b
    Examples:
      millstream config show
      millstream config show --origin
    """


@config.command(cls=Subcommand)
@click.option("--url", help="Show the settings of a command with this --url.")
@click.option("--context", metavar="NAME", help="Show the settings of a command with this --context.")
@click.option(
    "--origin", is_flag=True, help="Show the source of each value too, and the values it takes precedence over."
)
@output_option
def show(url: str | None, context: str | None, *, origin: bool, form: str) -> None:
    """Show the server that commands use; passwords are never shown.

    The first of these that names a server decides: --url or --context; MILLSTREAM_URL or MILLSTREAM_CONTEXT, then
    REDIS_URL; the millstream.toml of this directory or the nearest above it; the user's config.toml (`millstream
    context use`); redis://127.0.0.1:6379/0.

    \b
    Examples:
      millstream config show
      millstream config show --origin
      millstream config show -o json --origin | jq '.[] | select(.used)'

    \b
    Exit codes:
      0  done
      2  a file or the command line is invalid
    """
    choice = ServerChoice(url, context)
    rows = [row for at, source in enumerate(choice.sources()) for row in _rows(choice, source, used=at == 0)]
    if not origin:
        rows = [row for row in rows if row[-1]]
    columns = _SETTINGS if origin else _SETTINGS[:2]
    Output(form).table(Table("settings", columns, [row[: len(columns)] for row in rows]))


def _rows(choice: ServerChoice, source: ServerSource, *, used: bool) -> list[tuple[object, ...]]:
    """Return the settings from one source: setting, value, source, and True if it is used."""
    if source.url:
        return [("url", without_password(source.url), source.origin, used)]
    rows: list[tuple[object, ...]] = [("context", source.context, source.origin, used)]
    if not used:
        return rows
    found = choice.user.named(source.context)
    place = f"{choice.user.path} [contexts.{found.name}]"
    rows.append(("url", found.url, place, True))
    if found.user:
        rows.append(("user", found.user, place, True))
    if found.password:
        rows.append(("password", f"({found.password})", place, True))
    return [*rows, ("production", found.production, place, True)]
