"""The web application: it maps paths to pages, and errors to error pages."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.client.dead_letter.admin import DeadLetterStreamError
from millstream.client.line import AccessDenied, Disconnected, WrongReplyError, wrong_reply
from millstream.client.partitions.layout import LayoutError
from millstream.errors import MillstreamError, NotFoundError
from millstream.ops.asking import NotReadableError
from millstream.ops.history.keeping import keeping
from millstream.ops.plan import ChangeRefusedError, TargetMissingError
from millstream.ops.watching.watch import ServerWatch
from millstream.web import rendering
from millstream.web.entries import KINDS
from millstream.web.page import AddressError, Asked, FilterError, NoPageError, WebPage, words_of
from millstream.web.pages.change import change_page, correct_letter, job_page, make_change, stop_job
from millstream.web.pages.dead import dead_page, letter_page
from millstream.web.pages.entry import entry_page
from millstream.web.pages.group import group_page
from millstream.web.pages.handlers import handlers_page, run_page
from millstream.web.pages.health import alerts_page, changes_page, health_page
from millstream.web.pages.overview import overview_page, search_page
from millstream.web.pages.schedules import schedules_page
from millstream.web.pages.spark import archive_page, queries_page, query_page
from millstream.web.pages.stream import stream_page
from millstream.web.pages.workers import workers_page
from millstream.web.planned import FormError
from millstream.web.serving.download import entries_file
from millstream.web.serving.guard import WebGuard
from millstream.web.serving.live import LivePages, LiveResponse
from millstream.web.settings import ConsoleSettings
from millstream.worker.registry.lookup import NotThereError

Maker: TypeAlias = Callable[[Asked], Awaitable[WebPage]]

_FORM = 1 << 20  # largest form in bytes, which may contain a corrected entry
#: Seconds after which a page's beginning is sent before its facts are known; its status is then 200. The search waits
#: longer, since it may lead to another page.
AT_ONCE, _AT_ONCE_SEARCH = 0.1, 2.0
_HTML = "text/html; charset=utf-8"
_FOREVER = "public, max-age=31536000, immutable"


def console_app(settings: ConsoleSettings, watches: list[ServerWatch]) -> ASGIApp:
    """Return the application behind its :class:`WebGuard`."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as writers:
            for watch in watches if settings.history else ():
                if not watch.recorded:
                    await writers.enter_async_context(keeping(watch.server.url))
            yield
        await asyncio.gather(*(watch.close() for watch in watches))

    live = LivePages()
    routes = [Route("/static/{name}", _static, methods=["GET"])]
    for path, maker in PAGES.items():
        route = _Served(path, maker, settings, watches, live)
        routes.append(Route(path, route.page, methods=["GET"]))
        routes.append(Route(("/overview" if path == "/" else path) + ".json", route.twin, methods=["GET"]))
    for path, maker in POSTED.items():
        routes.append(Route(path, _Served(path, maker, settings, watches, live).posted, methods=["POST"]))
    files = _Served("/stream", stream_page, settings, watches, live)
    routes += [Route(f"/stream.{kind}", files.file, methods=["GET"]) for kind in KINDS]
    lost = _Served("/", _nowhere, settings, watches, live)
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: lost.lost, AddressError: _wrong_address})
    return WebGuard(_below(settings.base, app), settings.access)


def _below(base: str, app: ASGIApp) -> ASGIApp:
    """Return the application below a base path. The proxy in front may remove that path or keep it."""

    async def without_base(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == base or path.startswith(f"{base}/"):
            scope = {**scope, "path": path.removeprefix(base) or "/"}
        await app(scope, receive, send)

    return without_base if base else app


@dataclass(frozen=True, slots=True)
class _Served:
    """One page in its three formats: HTML, JSON and live events."""

    path: str
    maker: Maker
    settings: ConsoleSettings
    watches: list[ServerWatch]
    live: LivePages

    async def page(self, request: Request) -> Response:
        """Return a page as HTML, or as the events that keep it live."""
        asked = self._asked(request)
        if "text/event-stream" in request.headers.get("accept", ""):
            return LiveResponse(self.live, lambda: self._made(asked), asked)
        headers = {"vary": "accept"}
        making = asyncio.create_task(self._made(asked))
        done, _ = await asyncio.wait([making], timeout=_AT_ONCE_SEARCH if self.path == "/search" else AT_ONCE)
        if not done:
            return StreamingResponse(_in_two(making, asked), 200, headers, _HTML)
        return _whole(await making, asked, headers)

    async def posted(self, request: Request) -> Response:
        """Return the response to a form that changes something."""
        body = b""
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > _FORM:
                    return PlainTextResponse("The form is too long.\n", 413)
        except ClientDisconnect:
            return PlainTextResponse("The form is cut.\n", 400)  # the client has disconnected and cannot read it
        asked = self._asked(request, body)
        return _whole(await self._made(asked), asked)

    async def twin(self, request: Request) -> Response:
        """Return a page as JSON."""
        asked = self._asked(request)
        page = await self._made(asked)
        return Response(rendering.twin(page, asked), page.status, media_type="application/json")

    async def file(self, request: Request) -> Response:
        """Return the entries of a page as a file, or a page with the reason of a failure."""
        asked = self._asked(request)
        try:
            with asked.watch.replies():
                return await entries_file(asked, request.url.path.rpartition(".")[2])
        except MillstreamError as error:
            return _whole(refusal(error, asked), asked)

    async def lost(self, request: Request, _: Exception) -> Response:
        """Return the response for an address without a page."""
        try:
            return await self.page(request)
        except AddressError as error:  # errors in the application's own handlers have no handler
            return await _wrong_address(request, error)

    def _asked(self, request: Request, form: bytes = b"") -> Asked:
        query = request.scope["query_string"]
        words = words_of(query) | words_of(form)
        number = words.get("server", "0")
        if not (number.isascii() and number.isdigit() and len(number) < 6 and int(number) < len(self.watches)):
            raise AddressError(f"server= is a number below {len(self.watches)}")
        return Asked(
            self.settings,
            self.watches[int(number)],
            int(number),
            self.path,
            words,
            query.decode("latin-1"),
            request.scope.get("user", ""),
            request.client.host if request.client else "",
        )

    async def _made(self, asked: Asked) -> WebPage:
        """Return the page, or an error page."""
        try:
            with asked.watch.replies():
                return await self.maker(asked)
        except MillstreamError as error:
            return refusal(error, asked)


def refusal(error: MillstreamError, asked: Asked) -> WebPage:
    """Return the error page for a refused request."""
    if isinstance(error, FilterError):
        return trouble("The filter is invalid", str(error), 400, wrong={error.field: str(error)})
    if isinstance(error, FormError):
        wrong = {error.field: str(error)}
        return trouble("The form is invalid", str(error), 400, back=_back(asked), wrong=wrong, action=error.action)
    if isinstance(error, NoPageError | NotFoundError | NotReadableError | NotThereError | TargetMissingError):
        return trouble("Not found", str(error), 404)
    if isinstance(error, Disconnected | AccessDenied | WrongReplyError):
        return trouble("No answer", str(error), 502)
    if isinstance(error, ChangeRefusedError | DeadLetterStreamError | LayoutError):
        return trouble("Refused", str(error), 403, back=_back(asked))
    return trouble("Error", str(error), 500)


def _whole(page: WebPage, asked: Asked, headers: Mapping[str, str] | None = None) -> Response:
    """Return a page, or a redirect to another one."""
    if page.location:
        return RedirectResponse(page.location, 303, headers)
    return Response(rendering.html(page, asked), page.status, headers, _HTML)


async def _in_two(making: "asyncio.Task[WebPage]", asked: Asked) -> AsyncIterator[bytes]:
    """Yield a slow page in two parts: its beginning at once, all else when the server has replied."""
    yield rendering.beginning(asked)
    page = await making
    try:
        whole = rendering.rest(page, asked)
    except Exception as error:  # noqa: BLE001 - the first half was already sent, and the second is missing
        whole = rendering.rest(refusal(wrong_reply(error, asked.watch.server.url), asked), asked)
    yield whole


def _back(asked: Asked) -> str | None:
    """Return the address of the page with the form of a change; None if it is not known."""
    key, group = asked.words.get("key"), asked.words.get("group")
    if key is None:
        return None
    if asked.words.get("do", "").startswith("dead "):
        return asked.link("/dead", key=key)
    return asked.link("/stream", key=key) if group is None else asked.link("/group", key=key, group=group)


def trouble(title: str, words: str, status: int, back: str | None = None, **form: Any) -> WebPage:
    """Return an error page, if possible with the rejected form."""
    shown = {"words": words, "back": back, **form}
    return WebPage("trouble", title, {"error": words}, shown, live=status == 502, status=status)


async def _nowhere(asked: Asked) -> WebPage:  # noqa: ARG001 - every maker's signature
    raise NoPageError("The console has no page at this address.")


async def _wrong_address(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 400)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in rendering.FILES:
        return PlainTextResponse("The console has no such file.\n", 404)
    headers = {"cache-control": _FOREVER}
    return Response(rendering.static(name), 200, headers, rendering.FILES[name])


PAGES = {
    "/": overview_page,
    "/stream": stream_page,
    "/entry": entry_page,
    "/group": group_page,
    "/dead": dead_page,
    "/letter": letter_page,
    "/workers": workers_page,
    "/handlers": handlers_page,
    "/run": run_page,
    "/schedules": schedules_page,
    "/spark": queries_page,
    "/query": query_page,
    "/archive": archive_page,
    "/alerts": alerts_page,
    "/changes": changes_page,
    "/server": health_page,
    "/change": change_page,
    "/job": job_page,
    "/search": search_page,
}
"""Path -> function that makes the page."""

POSTED = {"/change": make_change, "/correction": correct_letter, "/job": stop_job}
"""Path -> function that carries out a form."""
