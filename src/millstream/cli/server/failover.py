"""``millstream failover``."""

import asyncio
import shlex
from typing import ClassVar

import click

from millstream.cli.shared.asking import ask
from millstream.cli.shared.confirm import confirm
from millstream.cli.shared.output import Output, subcommand
from millstream.cli.shared.servers import ServerUrl
from millstream.cli.shared.time_options import SPAN_HELP, span
from millstream.client.discovery.sentinel import parse_service
from millstream.client.line import Command, Line
from millstream.client.url import SENTINELS
from millstream.errors import MillstreamError, UsageError
from millstream.ops import words
from millstream.ops.asking import calls, refusal
from millstream.ops.server.reading import server
from millstream.ops.server.status import ServerStatus
from millstream.printable import without_password

_LOOK = 0.1  # seconds between two checks of the progress
_OVER, _ASKING = "no-failover", "failover-in-progress"
_SAID = {"waiting-for-sync": "writers wait until a replica has caught up", _ASKING: "a replica becomes the primary"}
_HELLO = "__sentinel__:hello"  # every Sentinel subscribes to this channel on each server that it watches
_SENTINEL_PORT = 26379
_LETS_IN = "`CONFIG SET masterauth PASSWORD` at this server (and masteruser, who needs +psync +replconf +ping)"


@subcommand()
@click.argument("url", type=ServerUrl())
@click.option("--to", metavar="HOST:PORT", help="Replica to promote. Default: one that has caught up.")
@click.option(
    "--timeout",
    default="30s",
    metavar="SPAN",
    help=f"Maximum time that writers wait until a replica has caught up ({SPAN_HELP}); after it, nothing is changed.",
)
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
def failover(url: str, to: str | None, timeout: str, yes: bool) -> None:
    """Promote a replica of the primary at URL without losing data: FAILOVER of Redis 6.2 and newer.

    Writers wait until the replica has caught up, usually about a second. Then that replica is the primary, and the
    former primary follows it. Clients that still write to the former primary get READONLY: point them to the new one.
    The command refuses servers that Sentinel watches, since Sentinel would undo the change; use `SENTINEL FAILOVER`
    there. If no replica catches up in time, the command names the lagging ones and changes nothing. The former primary
    logs in to the new one with masteruser and masterauth of its own settings. The command warns first if they may be
    missing.

    \b
    Examples:
      millstream failover redis://10.0.0.1:6379
      millstream failover redis://10.0.0.1:6379 --to 10.0.0.2:6379 --timeout 5s --yes

    \b
    Exit codes:
      0    a replica was promoted
      1    the primary did not change
      2    the command line is invalid, or you did not confirm
      3    the server cannot be reached
      5    the server refused
      130  interrupted; the server continues: see `millstream replicas`
    """
    output = Output()
    wait = span("--timeout", timeout)
    words = _words(to, wait)
    _refuse_watched(url)
    if ask(url, _may_be_shut_out):
        output.say(
            f"{_shown(url)} requires a password and has no masterauth: a replica that requires one too refuses "
            f"its login, and then does not become the primary. Before that, {_LETS_IN}"
        )
    confirm(f"Hand over the role of {_shown(url)}{f' to {to}' if to else ''}?", "hand it over", yes=yes)

    async def work(line: Line) -> str:
        return await _hand_over(line, words, wait / 1000, output)

    output.say(f"{ask(url, work)} is the primary now")


def _refuse_watched(url: str) -> None:
    """Refuse a failover of a server that Sentinel watches.

    Sentinel expects a server that it has not promoted to be a replica, and turns it back into one. For half a minute
    the two servers then follow each other, and no primary exists.
    """
    host, port, name = "SENTINEL", _SENTINEL_PORT, "NAME"
    if url.startswith(SENTINELS):
        service = parse_service(url)
        (host, port), name = service.sentinels[0], service.name
    elif not ask(url, _is_watched):
        return
    named = "" if url.startswith(SENTINELS) else ", by a Sentinel's address and its name of the service"
    raise UsageError(
        "Sentinel watches this server, and would undo this failover, so that no server leads for a while. Send the "
        f"command to Sentinel{named}, as in `redis-cli -h {host} -p {port} SENTINEL FAILOVER {shlex.quote(name)}`"
    )


def _shown(url: str) -> str:
    return without_password(url)


def _words(to: str | None, timeout: int) -> Command:
    """Return the FAILOVER command."""
    if to is None:
        return ("FAILOVER", "TIMEOUT", timeout)
    host, mark, port = to.rpartition(":")
    if not mark or not host or not port.isdecimal():
        raise UsageError(f"--to {to!r}: it must be the address and the port of a replica, such as 10.0.0.2:6379")
    return ("FAILOVER", "TO", host.strip("[]"), int(port), "TIMEOUT", timeout)


async def _hand_over(line: Line, words: Command, limit: float, output: Output) -> str:
    """Run the failover and wait for its end; return the address of the new primary."""
    over = asyncio.get_running_loop().time() + limit  # the server's limit begins later, so it also ends later
    refused = refusal((await calls(line, [words]))[0])
    if refused is not None:
        raise FailoverRefusedError(f"the server refused: {refused} ({_why_refused(await _status(line))})")
    said, waited = "", None
    while True:
        status = await _status(line)
        state = status.replication
        if state is None or state.failover is None:
            raise FailoverRefusedError("the server does not report its state: the user needs the right to INFO")
        if state.failover == _OVER:
            if state.primary is None:
                # a replica that caught up after the last check and then refused was not late
                is_up = asyncio.get_running_loop().time() >= over and said != _ASKING
                late = _late(status if waited is None else waited) if is_up else ""
                if not late:
                    raise MillstreamError(
                        "no replica took the role, and this server accepts writes again: its log has the reason. "
                        f"{await _why_not_taken(line)}"
                    )
                raise MillstreamError(f"no replica caught up in time: {late}. The server accepts writes again")
            return state.primary.address
        if state.failover != said:
            said = state.failover
            output.say(_SAID.get(said, said))
        waited = status
        await asyncio.sleep(_LOOK)


def _why_refused(status: ServerStatus) -> str:
    """Return the reason for a refusal, from the server's role, or the command that shows it."""
    state = status.replication
    if state is not None and state.primary is not None:
        return f"it follows {state.primary.address}: give the URL of the primary"
    if state is not None and not status.replicas:
        return "it has no replicas: if another server is the primary now, `millstream replicas` with both URLs shows it"
    return "`millstream replicas` lists the replicas and their lag"


def _late(status: ServerStatus) -> str:
    """Return the replicas that lacked data, and how much; empty if there were none."""
    return "; ".join(
        f"{each.address} lacked {words.DASH if each.behind_bytes is None else words.size(each.behind_bytes)}"
        + ("" if each.lag_seconds is None else f" and was last heard from {words.span(each.lag_seconds * 1000)} before")
        for each in status.replicas
        if each.behind_bytes != 0 or each.state != "online"
    )


async def _why_not_taken(line: Line) -> str:
    """Return possible reasons why no replica became the primary, and the remedies."""
    if await _setting(line, "masterauth") == b"":
        return f"masterauth is empty here, so a replica that requires a password refuses the login: {_LETS_IN}"
    return f"Where that is WRONGPASS, NOAUTH or NOPERM: {_LETS_IN}"


async def _may_be_shut_out(line: Line) -> bool:
    """Return True if the server requires a password but has none for a primary.

    Its replicas usually require a password too, and would then refuse its login.
    """
    return await _setting(line, "masterauth") == b"" and bool(await _setting(line, "requirepass"))


async def _setting(line: Line, name: str) -> bytes | None:
    """Return the value of a parameter; None if the server does not report it."""
    (reply,) = await calls(line, [("CONFIG", "GET", name)])
    value = reply[1] if isinstance(reply, list) and len(reply) == 2 else None
    return value if isinstance(value, bytes) else None


async def _is_watched(line: Line) -> bool:
    """Return True if a Sentinel is subscribed to the server; False if the server does not report it."""
    (reply,) = await calls(line, [("PUBSUB", "NUMSUB", _HELLO)])
    return isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], int) and reply[1] > 0


async def _status(line: Line) -> ServerStatus:
    return (await server(line))[0]


class FailoverRefusedError(MillstreamError):
    """The server refused the failover.

    What to do: correct the cause that the message names. `millstream replicas` lists the replicas and their lag.
    """

    exit_code: ClassVar[int] = 5
