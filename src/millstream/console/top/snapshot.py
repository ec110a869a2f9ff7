"""A view as text, for a ticket: read twice, so that there are rates, and written without a terminal."""

import asyncio
import time

from millstream.console.top.settings import TopSettings
from millstream.console.top.views import drawing
from millstream.console.top.views.asked import TopAsked
from millstream.console.top.views.every import view_of
from millstream.console.watching.watch import ServerWatch
from millstream.texts import time_text


async def snapshot(settings: TopSettings, width: int) -> str:
    """The text of the first view, with all its rows, the moment, and the command line that shows the same.

    Args:
        settings: which server, and which view.
        width: cells of a line.

    Raises:
        MillstreamError: what is to be shown is not there, the server does not answer.
    """
    watch = ServerWatch(settings.server)
    asked = TopAsked(watch, settings.start)
    try:
        with watch.replies():
            await view_of(asked)
            await asyncio.sleep(watch.pause())
            view = await view_of(asked)
    finally:
        await watch.close()
    now_ms = time.time_ns() // 1_000_000
    head = [f"millstream top  {settings.server.address}  {view.title}  {time_text(view.at_ms or now_ms)}", ""]
    rows = [line.text for line in drawing.drawn(view, width)]
    text = "\n".join([*head, *drawing.figures(view, width), "", *rows, "", drawing.shell(view, 1 << 16)])
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
