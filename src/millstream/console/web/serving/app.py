"""The console as one ASGI application: addresses to pages, in the form that was asked for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from millstream.client.line import AccessDenied, Disconnected
from millstream.console.changes.plan import ChangeRefusedError
from millstream.console.reading.asking import NotReadableError
from millstream.console.web import rendering
from millstream.console.web.links import AddressError, words_of
from millstream.console.web.page import Asked, NoPageError, WebPage
from millstream.console.web.pages.change import make_change
from millstream.console.web.serving import live
from millstream.console.web.serving.addresses import PAGES
from millstream.console.web.serving.guard import WebGuard
from millstream.console.web.settings import ConsoleSettings
from millstream.console.web.watch import ServerWatch
from millstream.errors import MillstreamError

Maker: TypeAlias = Callable[[Asked], Awaitable[WebPage]]

_FORM = 1 << 16  # bytes of a form
_FOREVER = "public, max-age=31536000, immutable"


def console_app(settings: ConsoleSettings, watches: list[ServerWatch]) -> ASGIApp:
    """The application, guarded.

    Args:
        settings: of the console.
        watches: one for each server, in their order; closed when the application ends.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.gather(*(watch.close() for watch in watches))

    routes = [Route("/static/{name}", _static, methods=["GET"])]
    for path, maker in PAGES.items():
        route = _Form(path, maker, settings, watches)
        routes.append(Route(path, route.page, methods=["GET"]))
        routes.append(Route(("/overview" if path == "/" else path) + ".json", route.twin, methods=["GET"]))
    changing = _Form("/change", make_change, settings, watches)
    routes.append(Route("/change", changing.posted, methods=["POST"]))
    lost = _Form("/", _nowhere, settings, watches)
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: lost.lost})
    return WebGuard(app, settings.access)


class _Form:
    """One page in its three forms.

    Args:
        path: of the page.
        maker: makes it.
        settings: of the console.
        watches: the servers.
    """

    def __init__(self, path: str, maker: Maker, settings: ConsoleSettings, watches: list[ServerWatch]) -> None:
        self._path = path
        self._maker = maker
        self._settings = settings
        self._watches = watches

    async def page(self, request: Request) -> Response:
        """As HTML, or as the events that keep it live."""
        try:
            asked = self._asked(request)
        except AddressError as error:
            return PlainTextResponse(f"{error}\n", 400)
        if "text/event-stream" in request.headers.get("accept", ""):
            events = live.events(lambda: self._made(asked), asked)
            return StreamingResponse(events, media_type="text/event-stream")
        page = await self._made(asked)
        headers = {"vary": "accept"}
        return Response(rendering.html(page, asked), page.status, headers, "text/html; charset=utf-8")

    async def posted(self, request: Request) -> Response:
        """What came of a form that changes something."""
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _FORM:
                return PlainTextResponse("The form is too long.\n", 413)
        try:
            asked = self._asked(request, body)
        except AddressError as error:
            return PlainTextResponse(f"{error}\n", 400)
        page = await self._made(asked)
        return Response(rendering.html(page, asked), page.status, media_type="text/html; charset=utf-8")

    async def twin(self, request: Request) -> Response:
        """As JSON."""
        try:
            asked = self._asked(request)
        except AddressError as error:
            return PlainTextResponse(f"{error}\n", 400)
        page = await self._made(asked)
        return Response(rendering.twin(page, asked), page.status, media_type="application/json")

    async def lost(self, request: Request, _: Exception) -> Response:
        """An address that no page has."""
        return await self.page(request)

    def _asked(self, request: Request, form: bytes = b"") -> Asked:
        query = request.scope["query_string"]
        words = words_of(query) | words_of(form)
        number = words.get("server", "0")
        if not (number.isascii() and number.isdigit() and len(number) < 6 and int(number) < len(self._watches)):
            raise AddressError(f"server= is a number below {len(self._watches)}")
        return Asked(
            self._settings,
            self._watches[int(number)],
            int(number),
            self._path,
            words,
            query.decode("latin-1"),
            request.scope.get("user", ""),
            request.client.host if request.client else "",
        )

    async def _made(self, asked: Asked) -> WebPage:
        """The page, or the one that says why there is none."""
        try:
            return await self._maker(asked)
        except (NoPageError, NotReadableError) as error:
            return trouble("Not here", str(error), 404)
        except (Disconnected, AccessDenied) as error:
            return trouble("No answer", str(error), 502)
        except ChangeRefusedError as error:
            return trouble("Refused", str(error), 403)
        except MillstreamError as error:
            return trouble("It did not work", str(error), 500)


def trouble(title: str, words: str, status: int) -> WebPage:
    """The page for what cannot be shown.

    Args:
        title: in few words.
        words: what happened, why, and what to do.
        status: of HTTP.
    """
    return WebPage("trouble", title, {"error": words}, {"words": words}, live=status == 502, status=status)


async def _nowhere(asked: Asked) -> WebPage:  # noqa: ARG001 - every maker's signature
    raise NoPageError("The console has no page at this address.")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in rendering.FILES:
        return PlainTextResponse("The console has no such file.\n", 404)
    headers = {"cache-control": _FOREVER}
    return Response(rendering.static(name), 200, headers, rendering.FILES[name])
