"""Requests to a server for the subcommands with ``--url``, over one connection that is closed afterwards."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import click

from millstream.client.line import Line, wrong_reply
from millstream.client.open import open_line
from millstream.client.url import check_shared, find_url, unreached
from millstream.errors import Disconnected, MillstreamError

T = TypeVar("T")

_KNOWN = (MillstreamError, OSError, ImportError, click.ClickException, click.Abort, click.exceptions.Exit)


@contextmanager
def replies_of(*urls: str) -> Iterator[None]:
    """Convert errors from reading malformed replies to an error with the servers' addresses."""
    try:
        yield
    except _KNOWN:
        raise
    except Exception as error:
        raise wrong_reply(error, *urls) from error


def ask(url: str | None, work: Callable[[Line], Awaitable[T]]) -> T:
    """Run a function with a connection to the server; return its result."""
    found = check_shared(find_url(url))

    async def main() -> T:
        line = open_line(found, joint=True)
        try:
            with replies_of(found):
                return await work(line)
        except Disconnected as error:
            raise Disconnected(unreached(found, error), sent=error.sent) from error
        finally:
            await line.close()

    return asyncio.run(main())


def ask_all(urls: Sequence[str], work: Callable[[Mapping[str, Line]], Awaitable[T]]) -> T:
    """Run a function with a connection to each of several servers, by their checked URLs."""

    async def main() -> T:
        lines = {url: open_line(url) for url in urls}
        try:
            return await work(lines)
        finally:
            for line in lines.values():
                await line.close()

    return asyncio.run(main())


def ask_repeatedly(url: str | None, work: Callable[[Line], AsyncGenerator[T, None]]) -> Iterator[T]:
    """Yield the results of a dialogue with the server, one after the other.

    The connection is idle while the caller handles a result.
    """
    found = check_shared(find_url(url))
    with asyncio.Runner() as runner:
        line = runner.run(_opened(lambda: open_line(found, joint=True)))
        source = work(line)
        try:
            while (item := runner.run(_next(source, found))) is not _END:
                yield cast("T", item)
        except Disconnected as error:
            raise Disconnected(unreached(found, error), sent=error.sent) from error
        finally:
            runner.run(_closed(source, line))


_END = object()


async def _opened(open_: Callable[[], Line]) -> Line:
    return open_()


async def _next(source: AsyncGenerator[T, None], url: str) -> object:
    with replies_of(url):
        return await anext(source, _END)


async def _closed(source: AsyncGenerator[T, None], line: Line) -> None:
    await source.aclose()
    await line.close()
