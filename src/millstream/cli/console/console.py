"""``millstream console``: the web pages for streams, groups and pending entries."""

import ipaddress
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from millstream.cli.console.servers import check_changes, given_servers
from millstream.cli.shared.output import Output, context_option, exits
from millstream.cli.shared.paths import ArchivePlace
from millstream.cli.shared.secret_files import first_line
from millstream.errors import UsageError
from millstream.ops.watching.servers import ConsoleServer

if TYPE_CHECKING:
    from millstream.web.settings import Network

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BASE = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9_.~-]+)+")
_PASSWORD = "MILLSTREAM_CONSOLE_PASSWORD"  # noqa: S105 - the name of a variable

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command()
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="TCP port.  [default: 8379, or a free one]")
@click.option("--allow-changes", is_flag=True, help="Allow changes: show their buttons, and carry them out.")
@click.option(
    "--password-file", type=_FILE, help=f"File with the console's password in its first line; or set {_PASSWORD}."
)
@click.option(
    "--user-header", metavar="NAME", help="HTTP header in which a proxy sends the name of the authenticated user."
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Address or network of proxies whose --user-header is trusted.  [default: this machine]",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Host name by which the console may be opened; repeatable.",
)
@click.option(
    "--report", "reports", multiple=True, metavar="FILE", help="Show a file of `millstream report`; repeatable."
)
@click.option(
    "--archive",
    type=ArchivePlace(),
    metavar="DIR|URL",
    help="Archive whose progress is shown too (see millstream archive --to).",
)
@click.option(
    "--base-path",
    metavar="PATH",
    default="",
    show_default=False,
    help="URL path at which a proxy serves the console, such as /millstream.",
)
@click.option(
    "--history",
    is_flag=True,
    help="Write a history of the servers for the charts, up to 50 MB on each, whenever no worker does. Default: off, "
    "and on with --allow-changes.",
)
@click.option("--ends-with-stdin", is_flag=True, hidden=True, help="End when standard input does.")
@context_option
def console(  # noqa: PLR0917 - click passes every option by name
    urls: tuple[str, ...],
    host: str,
    port: int | None,
    allow_changes: bool,
    password_file: Path | None,
    user_header: str | None,
    proxies: tuple[str, ...],
    names: tuple[str, ...],
    reports: tuple[str, ...],
    archive: Path | str | None,
    base_path: str,
    history: bool,
    ends_with_stdin: bool,
) -> None:
    """Show streams, groups and pending entries in the browser, live.

    Prints one line, `ready http://HOST:PORT/`, to standard output; open that address. It is read-only unless started
    with --allow-changes. It listens on this machine only, unless users log in with a password or through a proxy. The
    console queries servers only while a page is open. With --history or --allow-changes it also writes the history
    that the charts show, if no worker does.

    Other users of this machine can read a command line, so put a URL with a password into MILLSTREAM_URL or into a
    file. The argument @FILE names a file with one URL a line, context:NAME a named server (`millstream context`).

    \b
    Examples:
      millstream console                                    the server that `millstream config show` prints
      millstream console redis://127.0.0.1:6400/0 redis://127.0.0.1:6401/0
      millstream console @servers.txt --port 9000 --allow-changes
      millstream console --history                          also writes the history of the charts
      millstream console --report incident.json.gz          a file of `millstream report`
      millstream console --archive /data/archive            with the progress of its archive
      millstream console --host 0.0.0.0 --allow-host console.example.org --password-file console.password

    \b
    Exit codes:
      0  stopped by a signal
      1  the console could not start
      2  the command line is invalid
    """
    with exits("millstream console", extra="console"):
        from millstream.web.serving.process import run  # noqa: PLC0415 - needs the extra "console"
        from millstream.web.settings import Access, ConsoleSettings, digest  # noqa: PLC0415 - needs the extra "console"

        password = _password(password_file)
        _check_bind(host, asks=password is not None or user_header is not None)
        access = Access(
            hosts=frozenset(name.lower() for name in (*names, host)),
            password=None if password is None else digest(password),
            user_header=_header(user_header),
            proxies=_networks(proxies, user_header) or Access().proxies,
        )
        servers = tuple(ConsoleServer(one.url, one.context) for one in given_servers(urls, reports))
        if allow_changes:
            check_changes([server.url for server in servers])
        settings = ConsoleSettings(servers, access, allow_changes, archive, history or allow_changes, _base(base_path))

        def ready(address: str) -> None:
            print(f"ready {address}", flush=True)  # noqa: T201 - the one line of facts

        if not ends_with_stdin:  # the starting process prints its own message
            Output().say(f"Shows {', '.join(server.address for server in servers)}; Ctrl-C ends it.")
        run(settings, host, port, ready, until=sys.stdin if ends_with_stdin else None)


def _password(file: Path | None) -> str | None:
    """Return the password for the login; None if there is none."""
    if file is None:
        return os.environ.get(_PASSWORD) or None
    found = first_line(file)
    if not found:
        raise UsageError(f"--password-file {file}: its first line must be the password, and it is empty")
    return found


def _header(name: str | None) -> str | None:
    """Return a header's name in lower case; None if there is none."""
    if name is not None and not _HEADER.fullmatch(name):
        raise UsageError(f"--user-header {name!r} is invalid: a header's name consists of letters, digits and hyphens")
    return None if name is None else name.lower()


def _base(path: str) -> str:
    """Return the base path without a trailing slash; empty for the root."""
    found = path.rstrip("/")
    if found and not _BASE.fullmatch(found):
        raise UsageError(
            f"--base-path {path!r} is invalid: a path begins with a slash, and its parts have only letters, digits, "
            "'-', '_', '.' and '~'. Give a path such as /millstream."
        )
    return found


def _networks(proxies: tuple[str, ...], user_header: str | None) -> "tuple[Network, ...]":
    """Return the networks of the trusted proxies."""
    if proxies and user_header is None:
        raise UsageError("--proxy needs --user-header: give that one too")
    try:
        return tuple(map(ipaddress.ip_network, proxies))
    except ValueError as error:
        raise UsageError(f"--proxy needs an address or a network, such as 10.0.0.1 or 10.0.0.0/8: {error}") from None


def _check_bind(host: str, *, asks: bool) -> None:
    """Refuse to listen on other addresses than this machine's without a login."""
    if asks or _is_loopback(host):
        return
    raise UsageError(
        f"--host {host}: others reach this address, and could read every entry. Set a password (--password-file, or "
        f"{_PASSWORD}), put a proxy that authenticates users before the console (--user-header NAME), or leave --host "
        "out: `ssh -L 8379:127.0.0.1:8379` leads here from elsewhere"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(urlsplit(f"//{host}").hostname or host).is_loopback
    except ValueError:
        return host == "localhost"
