"""The terminal view at work, without a terminal: keys in, the screen as text out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot
from textual.widgets import Input

from millstream.console.changes.audit import Actor
from millstream.console.top.app import TopApp
from millstream.console.top.settings import TopSettings
from millstream.console.top.views.every import place_of_words
from millstream.console.watching.servers import ConsoleServer
from support.waiting import aeventually

SMALL, LARGE = (80, 24), (200, 50)
ACTOR = Actor("ana@host", "host, process 1", "top")


class Screen:
    """What somebody sees, and what they press.

    Args:
        app: the application.
        pilot: of it.
    """

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app = app
        self._pilot = pilot

    @property
    def text(self) -> str:
        """The screen, line by line, as it is drawn."""
        strips = self._pilot.app.screen._compositor.render_strips()  # a drawing of it (SVG) takes ten times as long
        return "\n".join(strip.text.rstrip() for strip in strips)

    async def shows(self, *words: str) -> str:
        """Wait until all of these are on the screen, and return it."""
        text = ""

        async def there() -> bool:
            nonlocal text
            await self._pilot.pause()
            text = self.text
            return all(word in text for word in words)

        try:
            await aeventually(there, what=f"the screen shows {words}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{text}") from None
        return text

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        await self._pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Type a text, and Enter."""
        await self._pilot.press(*text, "enter")

    async def open(self, typed: str, *words: str) -> str:
        """Go to a view by its name, which is pasted, and wait until it shows these."""
        await self.press("colon")
        self._pilot.app.query_one("#ask", Input).value = typed
        await self.press("enter")
        return await self.shows(*words)


@asynccontextmanager
async def terminal(
    url: str, view: str = "overview", *, size: tuple[int, int] = SMALL, changes: bool = False
) -> AsyncIterator[Screen]:
    """The application over a server, until the end of ``with``.

    Args:
        url: of the server.
        view: the first one, as it is typed.
        size: columns and lines.
        changes: whether it may change something.
    """
    app = TopApp(TopSettings(ConsoleServer(url), ACTOR if changes else None, place_of_words(view)))
    async with app.run_test(size=size) as pilot:
        yield Screen(app, pilot)
