"""A question to a server by the subcommands that take ``--url``: over one line, which is closed afterwards."""

import asyncio
from typing import TYPE_CHECKING, TypeVar

from millstream.errors import Disconnected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from millstream.client.line import Line

T = TypeVar("T")


def ask(url: str | None, work: "Callable[[Line], Awaitable[T]]") -> T:
    """Do something with a line to the server.

    Raises:
        Disconnected: it cannot be reached, or went away; the text names the server.
    """
    from millstream.client.open import open_line  # noqa: PLC0415 - help does not need it
    from millstream.client.url import (  # noqa: PLC0415 - as above
        check_shared,
        find_url,
        unreached,
    )

    found = check_shared(find_url(url))

    async def main() -> T:
        line = open_line(found)
        try:
            return await work(line)
        except Disconnected as error:
            raise Disconnected(unreached(found, error), sent=error.sent) from error
        finally:
            await line.close()

    return asyncio.run(main())
