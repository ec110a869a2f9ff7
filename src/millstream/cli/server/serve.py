"""``millstream serve``: run the server."""

import re
import socket
import sys
from pathlib import Path
from typing import Any

import click

from millstream.cli.shared.extras import check_extra
from millstream.cli.shared.paths import LocalPath
from millstream.errors import ConfigError, UsageError

try:
    from millstream.commands.context.config import OLD_NAMES, PARAMETERS
    from millstream.commands.context.tier import NO_DIRECTORY
    from millstream.server.beside import Companion
    from millstream.server.process import run_server
    from millstream.server.settings import Settings
    from millstream.server.tls import Tls
except ConfigError as error:  # the core that the environment names is invalid: exit code 1, as for any failed start
    sys.exit(f"millstream serve: {error}")

DEFAULT_DIR = Path("millstream-data")
_LARGEST_PORT = 65535
_PORTS = click.IntRange(0, _LARGEST_PORT)
_FILE = click.Path(path_type=Path)


def _assignments(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return ``name=value`` arguments as a dictionary of parameters that can be set."""
    found: dict[str, str] = {}
    for word in values:
        name, equals, value = word.partition("=")
        if not equals:
            raise click.BadParameter(f"{word!r} has no value. Write NAME=VALUE, such as maxclients=10000.")
        parameter = PARAMETERS.get(name.lower())
        if parameter is None or not (parameter.mutable or parameter.is_given):
            settable = {each.name for each in PARAMETERS.values() if each.mutable or each.is_given}
            known = ", ".join(sorted(settable.difference(OLD_NAMES.values())))
            raise click.BadParameter(f"{name!r} is not a parameter that can be set. Give one of: {known}.")
        try:
            parameter.parse(value)
        except ValueError as reason:
            raise click.BadParameter(
                f"{word!r} is invalid: {_in_plain_words(str(reason))}. Write a value such as "
                f"{parameter.name}={parameter.default or repr('')}, the default."
            ) from None
        found[parameter.name] = value if parameter.name != "maxmemory" else _size(ctx, param, value) or ""
    return found


def _in_plain_words(reason: str) -> str:
    """Return a readable form of Redis's error text for an invalid value; CONFIG SET sends that text unchanged."""
    if reason.endswith("parsed into an integer"):
        return "the value must be a whole number"
    reason = re.sub(r"^(percentage )?argument(\(s\))? must", "the value must", reason).rstrip(".")
    return reason[0].lower() + reason[1:]


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001 - click's signature
    """Check a size such as ``512mb``, and return it unchanged."""
    if value == "":
        raise click.BadParameter("the size is empty. Write a size such as 512mb, or 0 for no limit")
    if value is not None:
        try:
            PARAMETERS["maxmemory"].parse(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is invalid: use bytes, or a number with kb, mb or gb") from None
    return value


def _address(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int] | None:  # noqa: ARG001 - click's signature
    """Return ``host:port`` as two values. An IPv6 address may be in brackets."""
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > _LARGEST_PORT:
        raise click.BadParameter(f"{value!r} is invalid: use the form HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command()
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=_PORTS, default=6379, help="TCP port; 0 picks a free one.")
@click.option("--unixsocket", type=click.Path(path_type=Path), help="Path of a unix socket to listen on too.")
@click.option("--no-tcp", is_flag=True, help="Do not listen for unencrypted TCP: only at the unix socket or for TLS.")
@click.option("--tls-port", type=_PORTS, help="Listen for TLS at this TCP port too; 0 picks a free one.")
@click.option("--tls-cert-file", type=_FILE, help="File with the server's certificate (PEM).")
@click.option("--tls-key-file", type=_FILE, help="File with the server's key (PEM, without a passphrase).")
@click.option(
    "--tls-ca-cert-file", type=_FILE, help="File with the CA certificates that sign clients' certificates (PEM)."
)
@click.option(
    "--tls-auth-clients",
    type=click.Choice(["no", "optional", "yes"]),
    default="yes",
    help="Client certificates: none, optional, or required.",
)
@click.option("--tls-replication", is_flag=True, help="Connect to the primary over TLS, with the --tls files.")
@click.option("--dir", "directory", type=LocalPath(), help=f"Data directory.  [default: ./{DEFAULT_DIR}]")
@click.option("--memory", is_flag=True, help="Keep the data in memory only; it is lost when the server ends.")
@click.option(
    "--fsync",
    type=click.Choice(["always", "everysec", "no"]),
    default="always",
    help="Write to disk before each acknowledgement (always), about every second, or when the kernel decides (no).",
)
@click.option(
    "--maxmemory",
    metavar="SIZE",
    callback=_size,
    help="Memory above which commands that add data are refused, such as 512mb; 0 for no limit.  [default: 0]",
)
@click.option(
    "--tier",
    type=click.Choice(["no", "yes"]),
    help="Keep the newest entries of streams in memory, and move older ones to files (yes).  [default: no]",
)
@click.option("--maxclients", type=click.IntRange(1), help="Maximum number of connections at a time.  [default: 10000]")
@click.option(
    "--requirepass",
    envvar="MILLSTREAM_REQUIREPASS",
    help="Password of clients. Better set MILLSTREAM_REQUIREPASS: other users can read the command line.",
)
@click.option(
    "--replicaof",
    metavar="HOST:PORT",
    callback=_address,
    help="Redis or Millstream server to follow; a role that REPLICAOF stored in the data directory takes precedence.",
)
@click.option("--masteruser", envvar="MILLSTREAM_MASTERUSER", help="User for the login at the --replicaof server.")
@click.option(
    "--masterauth",
    envvar="MILLSTREAM_MASTERAUTH",
    help="Password for that login. Better set MILLSTREAM_MASTERAUTH: other users can read the command line.",
)
@click.option(
    "--replica-announce-ip",
    metavar="IP",
    help="Address that this replica announces, if others cannot reach it at its own.",
)
@click.option("--replica-announce-port", type=click.IntRange(1, 65535), help="Port that this replica announces.")
@click.option("--aclfile", type=_FILE, help="Users file: read at the start and by ACL LOAD, written by ACL SAVE.")
@click.option(
    "--console",
    "console_port",
    type=_PORTS,
    help="Local TCP port of a read-only console for this server; 0 picks a free one.",
)
@click.option(
    "--set",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_assignments,
    help="CONFIG parameter to set; repeatable.",
)
def serve(
    *,
    host: str,
    port: int,
    unixsocket: Path | None,
    no_tcp: bool,
    directory: Path | None,
    memory: bool,
    fsync: str,
    replicaof: tuple[str, int] | None,
    aclfile: Path | None,
    console_port: int | None,
    parameters: dict[str, str],
    **given: Any,
) -> None:
    """Run the stream server.

    Any Redis Streams client can connect. Once ready, the server prints one line, `ready redis://HOST:PORT`, to standard
    output; everything else goes to standard error. SIGTERM and Ctrl-C stop it after all data is on disk.

    \b
    Examples:
      millstream serve --port 6400 --dir /var/lib/millstream
      millstream serve --port 0 --memory                        for tests: a free port, nothing kept
      millstream serve --no-tcp --unixsocket /run/millstream/sock --dir /var/lib/millstream
      millstream serve --port 6400 --memory --console 8379      with the console at http://127.0.0.1:8379/
      millstream serve --maxmemory 512mb --tier yes --dir data    streams larger than memory
      millstream serve --host 0.0.0.0 --aclfile users.acl --set maxclients=500
      millstream serve --port 6400 --dir data --replicaof redis.example:6379      follow a Redis, to take over from it

    docs/server.md lists the parameters of --set; `redis-cli CONFIG GET '*'` shows them. --console starts a process that
    ends with the server; it needs: pip install 'millstream[console]'.

    \b
    Exit codes:
      0  stopped by a signal or SHUTDOWN
      1  the server could not start, or the disk failed; one line describes the remedy
      2  the command line is invalid
    """
    if memory and directory is not None:
        raise click.UsageError("--memory and --dir exclude each other: leave one of them out")
    # The other options are named after TLS settings and configuration parameters
    tls = Tls(**{name.removeprefix("tls_"): given.pop(name) for name in list(given) if name.startswith("tls_")})
    if no_tcp and unixsocket is None and tls.port is None:
        raise click.UsageError(
            "--no-tcp is invalid: the server would listen on nothing. Give --unixsocket or --tls-port."
        )
    has_tls = tls.port is not None or tls.replication
    if not has_tls and (tls.cert_file or tls.key_file or tls.ca_cert_file):
        raise click.UsageError("TLS files need a port for TLS: add --tls-port")
    parameters |= {name.replace("_", "-"): str(value) for name, value in given.items() if value}
    if not memory and directory is None:
        click.echo(f"No --dir given: the data is kept in ./{DEFAULT_DIR} (use --memory to keep nothing).", err=True)
    if memory and parameters.get("tier", "").lower() == "yes":
        raise click.UsageError(f"--memory is invalid with tier yes: {NO_DIRECTORY}")
    settings = Settings(
        host=host,
        port=None if no_tcp else port,
        unixsocket=unixsocket,
        directory=None if memory else directory or DEFAULT_DIR,
        fsync=fsync,  # type: ignore[arg-type] # click.Choice has checked it
        parameters=parameters,
        tls=tls if has_tls else None,
        aclfile=aclfile,
        replicaof=replicaof,
    )
    try:
        companion = (
            None if console_port is None else _console(settings, console_port, parameters.get("requirepass", ""))
        )
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    sys.exit(run_server(settings, companion))


def _console(settings: "Settings", port: int, password: str) -> "Companion":
    """Return the process of the console, which ends with the server."""
    check_extra("console", "--console")
    if settings.port is None and settings.unixsocket is None:
        raise UsageError(
            "--console needs plain TCP or a unix socket, and the server listens at neither: run "
            "`millstream console` with the URL and certificates of a client"
        )
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"--console {port}: {error.strerror}: give another port, or 0 for a free one") from None
    argv = [sys.executable, "-c", "from millstream.cli.main import main; main()"]
    argv += ["console", "--port", str(port), "--ends-with-stdin"]
    return Companion("console", argv, f"millstream console --port {port}", password)
