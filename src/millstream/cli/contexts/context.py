"""``millstream context``: named servers in the user's ``config.toml``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.shared import config_files
from millstream.cli.shared.confirm import confirm
from millstream.cli.shared.output import Column, Output, Subcommand, Table, output_option
from millstream.cli.shared.servers import ServerChoice
from millstream.errors import UsageError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


_CONTEXTS = (
    Column("context"),
    Column("used"),
    Column("url"),
    Column("user", rank=2),
    Column("password", "prose", rank=3),
    Column("production", rank=1),
)


@click.group()
def context() -> None:
    """Name servers: `--context NAME` uses one for a command, `context use NAME` for all commands.

    They are in config.toml below $XDG_CONFIG_HOME/millstream (else ~/.config/millstream), which only you can read. A
    context has the source of its password, never the password. docs/contexts.md describes the order in which a command
    finds its server.

    \b
    Examples:
      millstream context add local redis://127.0.0.1:6379/0
      millstream context add prod rediss://redis.example.org:6380/0 --user ops --password-env PROD_PASSWORD --production
      millstream context use local
      millstream context ls
      millstream stream ls --context prod

    \b
    Exit codes:
      0  done
      1  the command failed
      2  the command line or a file is invalid
      4  no context has that name
    """


@context.command(cls=Subcommand)
@output_option
def ls(form: str) -> None:
    """List the contexts.

    `used` marks the context for commands that do not name a server. MILLSTREAM_CONTEXT, a project's millstream.toml or
    `context use` chooses it.

    \b
    Examples:
      millstream context ls
      millstream context ls -o json | jq -r '.[].context'
    """
    choice = ServerChoice()
    used = choice.named()
    rows = [_row(each, used) for each in choice.user.contexts.values()]
    empty = "No contexts; `millstream context add NAME URL` adds one."
    Output(form).table(Table("contexts", _CONTEXTS, [list(row.values()) for row in rows], empty=empty))


@context.command(cls=Subcommand)
@click.argument("name", metavar="[NAME]", required=False)
@output_option
def show(name: str | None, form: str) -> None:
    """Show the context NAME, or the one in use.

    \b
    Examples:
      millstream context show
      millstream context show prod -o json
    """
    choice = ServerChoice()
    used = choice.named()
    found = used if name is None else choice.user.named(name)
    if found is None:
        raise config_files.NoContextError(
            "no context is used; `millstream config show` shows the server in use, and its source"
        )
    Output(form).report(_row(found, used))


@context.command(cls=Subcommand)
@click.argument("name", metavar="NAME")
@click.argument("url", metavar="URL")
@click.option("--user", metavar="USER", help="User of the server.")
@click.option("--password-env", metavar="VARIABLE", help="Environment variable that has the password.")
@click.option("--password-file", metavar="FILE", help="File with the password in its first line.")
@click.option("--password-prompt", is_flag=True, help="Prompt for the password at the terminal, each time.")
@click.option("--production", is_flag=True, help="Confirm changes by the context's name, unless --context gave it.")
@click.option("--replace", is_flag=True, help="Replace the context of that name.")
@click.option("--use", is_flag=True, help="Use this context for commands that do not name a server.")
def add(name: str, url: str, *, replace: bool, use: bool, **options: str | bool | None) -> None:
    """Add a server under NAME.

    URL is as for --url, but without a password. It can have connection options, such as rediss:// for TLS and
    ?ssl_ca_certs=/etc/ca.pem. A command reads the password from the named source when it needs it.

    \b
    Examples:
      millstream context add local redis://127.0.0.1:6379/0 --use
      millstream context add prod rediss://redis.example.org:6380/0 --user ops --password-file ~/.prod --production
      millstream context add away 'rediss://10.0.0.7:6380/2?ssl_ca_certs=/etc/ca.pem' --password-prompt
    """
    path = config_files.user_path(os.environ)
    if not config_files.NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid name: use up to 64 letters, digits, dots, - and _")
    if (file := options["password_file"]) is not None:
        options["password_file"] = str(Path(str(file)).expanduser().absolute())
    entry = {word.replace("_", "-"): value for word, value in {"url": url, **options}.items() if value}
    config_files.context_of(path, name, entry)
    replaced = name in config_files.read_user(path).contexts
    if replaced and not replace:
        raise UsageError(f"there is a context {name} already: use --replace to replace it, or choose another name")

    def change(document: "TOMLDocument") -> None:
        _contexts(document)[name] = entry
        if use:
            document["context"] = name

    config_files.change_user(path, change)
    Output().say(f"{'Replaced' if replaced else 'Added'} {name} in {path}.")
    if use:
        _say_used(name)


@context.command(cls=Subcommand)
@click.argument("name", metavar="NAME")
def use(name: str) -> None:
    """Use the context NAME for commands that do not name a server.

    \b
    Example:
      millstream context use staging
    """
    path = config_files.user_path(os.environ)
    config_files.read_user(path).named(name)

    def change(document: "TOMLDocument") -> None:
        document["context"] = name

    config_files.change_user(path, change)
    _say_used(name)


@context.command(cls=Subcommand)
@click.argument("name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
def rm(name: str, *, yes: bool) -> None:
    """Remove the context NAME; its server is not changed.

    \b
    Example:
      millstream context rm staging
    """
    path = config_files.user_path(os.environ)
    user = config_files.read_user(path)
    user.named(name)
    confirm(f"Forget the context {name}?", "forget it", yes=yes)

    def change(document: "TOMLDocument") -> None:
        _contexts(document).pop(name, None)
        if document.get("context") == name:
            del document["context"]

    config_files.change_user(path, change)
    Output().say(f"Removed {name}." + (" No context is used now." if user.context == name else ""))


def _contexts(document: "TOMLDocument") -> Any:
    """Return the table of all contexts; create it if it does not exist."""
    import tomlkit  # noqa: PLC0415 - only commands that write load it

    if "contexts" not in document:
        document["contexts"] = tomlkit.table(is_super_table=True)
    return document["contexts"]


def _row(one: config_files.ServerContext, used: config_files.ServerContext | None) -> dict[str, object]:
    return {
        "context": one.name,
        "used": one == used,
        "url": one.url,
        "user": one.user or None,
        "password": one.password or None,
        "production": one.production,
    }


def _say_used(name: str) -> None:
    """Report that a context is used, or the setting that overrides it."""
    first = next(ServerChoice().sources())
    Output().say(f"{name} is used from now on.")
    if first.context != name:
        Output().say(f"But here {first.origin} takes precedence; `millstream config show --origin` shows all.")
