"""``millstream console``: the web pages over streams, groups and pending entries."""

import ipaddress
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from millstream.cli.shared.output import Output, exits
from millstream.errors import UsageError

_PASSWORD = "MILLSTREAM_CONSOLE_PASSWORD"  # noqa: S105 - the name of a variable

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command(context_settings={"max_content_width": 110})
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), help="TCP port.  [default: 8379, or a free one]")
@click.option("--allow-changes", is_flag=True, help="Show the buttons that change something, and obey them.")
@click.option("--password-file", type=_FILE, help=f"Ask for this file's first line. Also by {_PASSWORD}.")
@click.option("--user-header", metavar="NAME", help="Header in which a proxy names the user it has let in.")
@click.option(
    "--proxy", "proxies", multiple=True, metavar="ADDRESS", help="Whose --user-header counts.  [default: this machine]"
)
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="Name the console may be opened by; repeatable."
)
def console(  # noqa: PLR0917 - click passes every option by name
    urls: tuple[str, ...],
    host: str,
    port: int | None,
    allow_changes: bool,
    password_file: Path | None,
    user_header: str | None,
    proxies: tuple[str, ...],
    names: tuple[str, ...],
) -> None:
    """Show streams, groups and pending entries in the browser, live.

    Prints one line, `ready http://HOST:PORT/`, to standard output; open that address. Nothing is asked of a server
    while nobody looks. It changes nothing unless started with --allow-changes, and listens on this machine alone unless
    it asks who comes: for a password, or for what a proxy says.

    Everybody on this machine sees a command line, so a URL with a password in it goes into MILLSTREAM_URL or into a
    file, one URL a line, that is named here as @FILE.

    \b
    Examples:
      millstream console                                    the server of MILLSTREAM_URL, or of this machine
      millstream console redis://127.0.0.1:6400/0 redis://127.0.0.1:6401/0
      millstream console @servers.txt --port 9000 --allow-changes
      millstream console --host 0.0.0.0 --allow-host console.example.org --password-file console.password

    Exit code: 0 ended as asked, 1 it could not start, 2 the command line is invalid.
    """
    with exits("millstream console", extra="console"):
        from millstream.console.web.serving.process import run  # noqa: PLC0415 - help does not need it
        from millstream.console.web.settings import (  # noqa: PLC0415 - as above
            Access,
            ConsoleServer,
            ConsoleSettings,
            digest,
        )

        password = _password(password_file)
        _check_bind(host, asks=password is not None or user_header is not None)
        access = Access(
            hosts=frozenset(name.lower() for name in (*names, host)),
            password=None if password is None else digest(password),
            user_header=None if user_header is None else user_header.lower(),
            proxies=frozenset(proxies) or Access().proxies,
        )
        servers = tuple(ConsoleServer(url) for url in _servers(urls))
        settings = ConsoleSettings(servers, access, allow_changes)

        def ready(address: str) -> None:
            print(f"ready {address}", flush=True)  # noqa: T201 - the one line of facts

        Output().say(f"Shows {', '.join(server.address for server in servers)}; Ctrl-C ends it.")
        run(settings, host, port, ready)


def _servers(words: tuple[str, ...]) -> list[str]:
    """The URLs that are meant, checked.

    Raises:
        UsageError: a URL is invalid, has a password that others see, or a file cannot be read.
    """
    from millstream.client.url import check_shared, find_url, without_password  # noqa: PLC0415 - help does not need it

    found: list[str] = []
    for word in words:
        if word.startswith("@"):
            found += _from_file(word[1:])
            continue
        if without_password(word) != word:
            raise UsageError(
                f"{without_password(word)}: everybody on this machine sees the password (ps): put the URL into "
                "MILLSTREAM_URL, or into a file that only you can read, and give @FILE"
            )
        found.append(word)
    return [check_shared(url) for url in found or [find_url()]]


def _from_file(name: str) -> list[str]:
    try:
        lines = (sys.stdin.read() if name == "-" else Path(name).read_text()).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"@{name} cannot be read: {error}") from None
    urls = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not urls:
        raise UsageError(f"@{name} has no URL in it: write one a line, such as redis://user:password@127.0.0.1:6379/0")
    return urls


def _password(file: Path | None) -> str | None:
    """The password that is asked for; None for none.

    Raises:
        UsageError: the file has none.
    """
    if file is None:
        return os.environ.get(_PASSWORD) or None
    found = file.read_text(errors="surrogateescape").partition("\n")[0].strip("\r")
    if not found:
        raise UsageError(f"--password-file {file}: its first line is the password, and it is empty")
    return found


def _check_bind(host: str, *, asks: bool) -> None:
    """Refuse to show everything to everybody.

    Raises:
        UsageError: others reach this address, and nobody would be asked who they are.
    """
    if asks or _is_loopback(host):
        return
    raise UsageError(
        f"--host {host}: others reach this address, and could read every entry. Have the console ask for a password "
        f"(--password-file FILE, or {_PASSWORD}), put a proxy before it that lets people in (--user-header NAME), or "
        "leave --host out: `ssh -L 8379:127.0.0.1:8379` leads here from elsewhere"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(urlsplit(f"//{host}").hostname or host).is_loopback
    except ValueError:
        return host == "localhost"
