"""Shell completion after Tab: names of streams, groups, consumers, workers and contexts.

This module is loaded only when a shell requests completions. It reads a bounded number of keys from the server within
half a second. It offers and prints nothing if the server does not reply, a password would have to be typed, or a file
is invalid.
"""

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from millstream.cli.shared.servers import GIVEN, ServerChoice, context_url
from millstream.client.url import EMBEDDED
from millstream.errors import MillstreamError
from millstream.paths import packaged

if TYPE_CHECKING:
    from millstream.client.line import Line, Reply

Find: TypeAlias = "Callable[[Line, click.Context, str], AsyncIterator[bytes]]"

PATIENCE = 0.5
"""Default seconds to wait for the server, unless MILLSTREAM_COMPLETE_TIMEOUT is set."""

MOST = 200
"""Largest number of offered names."""

_TRIPS, _KEYS = 10, 1000  # number of SCAN calls, and the COUNT of each
# Any other name would need quotes, and the user may already have typed an opening quote
_PLAIN = re.compile(r"[\w@%+=:,./{}^-]+")
# An option; zsh's form for a command's path; or braces that a shell may expand to a million words
_TAKEN = re.compile(r"[-=]|.*\{.*(,|\.\.)", re.DOTALL)
_GLOB = re.compile(r"([\\*?\[\]])")


class ServerName(click.ParamType[str]):
    """An argument that is a name on a server."""

    name = "text"

    def __init__(self, find: Find) -> None:
        self._find = find

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names with this beginning that were found in time."""
        return _items(_found(_whole(ctx, param), self._find, incomplete))


class ContextName(click.ParamType[str]):
    """An argument that is the name of a context."""

    name = "text"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's signature
        """Return the contexts with this beginning."""
        try:
            names = list(ServerChoice().user.contexts)
        except MillstreamError:
            return []
        return _items(name for name in names if name.startswith(incomplete))


class NotedWords(ShellComplete):
    """Click's completion, which also records the arguments before the one being typed."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Record the arguments, then complete as click does."""
        _words[:] = args
        return super().get_completions(args, incomplete)


class ZshWords(NotedWords, ZshComplete):
    """Completion for zsh."""


class FishWords(NotedWords, FishComplete):
    """Completion for fish.

    Click's script would write the part of a name before a comma, which may be another name.
    """

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


class BashWords(NotedWords, BashComplete):
    """Completion for bash, which also handles colons, common in keys. Bash splits an argument at them."""

    source_template = packaged("millstream.cli.shared", "complete.bash")

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the arguments before the one being typed, and that one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        return (words, "") if not words or line[-1:].isspace() else (words[:-1], words[-1])

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line for the shell function.

        If bash split the argument, it has only the part after the last break.
        """
        _, word = self.get_completion_args()
        breaks = [at + 1 for at, c in enumerate(word) if c in ":=" and c in os.environ.get("COMP_WORDBREAKS", "")]
        value = item.value[max(breaks, default=0) :] if item.value.startswith(word) else item.value
        return f"{item.type},{value}"


def prepare() -> None:
    """Register these classes with click, before it replies to a shell."""
    for kind in (BashWords, ZshWords, FishWords):
        add_completion_class(kind)


def attach(command: click.Command) -> None:
    """Add completion to the arguments of a command and its subcommands that are names."""
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        attach(inner)
    for param in command.params:
        if isinstance(param.type, type(click.STRING)) and (kind := _NAMES.get(param.name or "")) is not None:
            param.type = kind


async def _streams(line: "Line", ctx: click.Context, begun: str) -> AsyncIterator[bytes]:  # noqa: ARG001 - of Find
    pattern = _GLOB.sub(r"\\\1", begun) + "*"
    for node in await line.nodes():
        cursor: bytes | int = 0
        for _ in range(_TRIPS):
            reply = await _reply(node, "SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS, "TYPE", "stream")
            cursor, keys = reply
            for key in keys:
                yield key
            if cursor == b"0":
                break


async def _groups(line: "Line", ctx: click.Context, begun: str) -> AsyncIterator[bytes]:  # noqa: ARG001 - of Find
    for name in await _names(line, ctx, "GROUPS", "stream"):
        yield name


async def _consumers(line: "Line", ctx: click.Context, begun: str) -> AsyncIterator[bytes]:  # noqa: ARG001 - of Find
    for name in await _names(line, ctx, "CONSUMERS", "stream", "group"):
        yield name


async def _workers(line: "Line", ctx: click.Context, begun: str) -> AsyncIterator[bytes]:  # noqa: ARG001 - of Find
    if " worker " not in ctx.command_path:
        return
    from millstream.worker.registry.protocol import INDEX  # noqa: PLC0415 - of few commands

    for name in await _reply(line.near(INDEX), "ZREVRANGE", INDEX, 0, MOST):
        yield name


async def _schedules(line: "Line", ctx: click.Context, begun: str) -> AsyncIterator[bytes]:  # noqa: ARG001 - of Find
    from millstream.client.later import recurring, schedule  # noqa: PLC0415 - of few commands

    if " schedule " in ctx.command_path:
        for name in (await _reply(line.near(recurring.KEY), "HSCAN", recurring.KEY, 0, "COUNT", _KEYS))[1][::2]:
            yield name
    elif isinstance(stream := ctx.params.get("stream"), str):
        key = schedule.due_key(stream)
        for name in await _reply(line.near(key), "ZRANGE", key, 0, MOST):
            yield name


async def _limits(line: "Line", _: click.Context, begun: str) -> AsyncIterator[bytes]:  # noqa: ARG001 - of Find
    from millstream.client.limits.rate import RATES  # noqa: PLC0415 - of few commands
    from millstream.worker.registry import protocol  # noqa: PLC0415 - as above

    for name in (await _reply(line.near(RATES), "HSCAN", RATES, 0, "COUNT", _KEYS))[1][::2]:
        yield name
    for worker in await protocol.workers(line):
        for one in [limit for subscriber in worker["subscribers"] for limit in subscriber["limits"]]:
            yield one["name"].encode(errors="surrogateescape")


async def _names(line: "Line", ctx: click.Context, what: str, *typed: str) -> list[bytes]:
    """Return names from XINFO, for the arguments typed before; empty if one of these is missing."""
    words = [ctx.params.get(each) for each in typed]
    if not all(isinstance(word, str) and word for word in words):
        return []
    rows = await _reply(line.near(str(words[0])), "XINFO", what, *map(str, words))
    return [dict(zip(row[::2], row[1::2], strict=False))[b"name"] for row in rows]


async def _reply(line: "Line", *command: bytes | str | int) -> "Reply":
    """Return a reply; raise ValueError if the server refuses the command."""
    (reply,) = await line.calls([command])
    if not isinstance(reply, Exception):
        return reply
    raise ValueError(str(reply))


_NAMES: dict[str, click.ParamType[str]] = {
    "stream": ServerName(_streams),
    "streams": ServerName(_streams),
    "target": ServerName(_streams),
    "group": ServerName(_groups),
    "like": ServerName(_groups),
    "consumer": ServerName(_consumers),
    "claim_to": ServerName(_consumers),
    "to": ServerName(_consumers),
    "id": ServerName(_workers),
    "ids": ServerName(_workers),
    "schedule": ServerName(_schedules),
    "schedules": ServerName(_schedules),
    "limit": ServerName(_limits),
    "context": ContextName(),
    "name": ContextName(),
}
"""Argument of a command -> the type of name that it takes."""


_words: list[str] = []
"""The arguments before the one being typed. A process completes only once."""


def _whole(ctx: click.Context, param: click.Parameter) -> click.Context:
    """Return the context with all earlier arguments. Click drops them while an option has no value yet."""
    if not isinstance(param, click.Option):
        return ctx
    command, words = ctx.find_root().command, _words[:-1]
    while isinstance(command, click.Group) and words:
        command = command.get_command(ctx, words.pop(0)) or ctx.command
    return command.make_context(ctx.info_name, words, ctx.parent, resilient_parsing=True)


def _found(ctx: click.Context, find: Find, begun: str) -> list[str]:
    """Return the matching names from the server that the command line selects."""
    from millstream.client.open import open_line  # noqa: PLC0415 - contexts are completed without

    found: list[str] = []
    patience = _patience()

    async def ask(url: str) -> None:
        line = open_line(url)
        try:
            async with asyncio.timeout(patience):
                await _collect(find(line, ctx, begun), begun, found)
        except TimeoutError:
            return  # the names found so far are offered
        finally:
            await line.close()

    def work() -> None:
        try:
            url = _url(ctx)
            if not url.startswith(EMBEDDED):  # opening a data directory takes too long for a completion
                asyncio.run(ask(url))
        except (MillstreamError, OSError, TypeError, ValueError, KeyError):  # also for malformed replies
            found.clear()

    asking = threading.Thread(target=work, daemon=True)
    asking.start()
    asking.join(2 * patience)
    if asking.is_alive():  # a DNS lookup cannot be cancelled, and the process would wait for it before it exits
        os._exit(0)
    return found


async def _collect(names: AsyncIterator[bytes], begun: str, found: list[str]) -> None:
    async for name in names:
        text = name.decode(errors="replace")
        if text.startswith(begun) and _PLAIN.fullmatch(text) and not _TAKEN.match(text) and text not in found:
            found.append(text)
        if len(found) == MOST:
            return


def _patience() -> float:
    """Return the seconds that a completion waits for the server."""
    try:
        return min(max(float(os.environ.get("MILLSTREAM_COMPLETE_TIMEOUT", PATIENCE)), 0.01), 60.0)
    except ValueError:
        return PATIENCE


def _url(ctx: click.Context) -> str:
    choice = ServerChoice(ctx.params.get("url"), ctx.meta.get(GIVEN))
    source = next(choice.sources())
    return source.url or context_url(choice.user.named(source.context), os.environ, None)


def _items(names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names)]
