"""Checks of every request, and the headers of every response. They stop the pages of other sites.

A browser runs on this machine, so pages of other sites can reach the console as easily as its user can:

- An attacker's host name may resolve to 127.0.0.1 (DNS rebinding): only known names in ``Host`` are accepted.
- A page of another site may send forms and load images: a change needs an ``Origin`` that is this console. Other sites
  may only request whole pages (by a link that the user follows). ``Sec-Fetch-Site`` shows the origin of a request, if
  the browser sends it; another port of this machine is another site, too.
- A page of another site may show the console in a frame: ``frame-ancestors`` forbids it.
- Attackers may write into a stream: its content is escaped, and the browser loads only scripts, styles and images that
  are files of the console (the content security policy). Text becomes HTML in the browser only at one permitted place
  (trusted types).
"""

import asyncio
import base64
import binascii
import hmac
import ipaddress
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.texts import in_one_line
from millstream.web.settings import Access, digest

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types millstream"
)
"""The content security policy of every response."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Addresses contain names of streams. Unlike no-referrer, this still sends the Origin header
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE = frozenset({"GET", "HEAD"})
_HERE = frozenset({"same-origin", "none"})  # "none": a typed address or a bookmark
_SLOW = 0.5  # seconds of delay after a wrong password
_WRONG_AT_ONCE = 8  # requests with a wrong password during that delay; further ones are refused at once


class WebGuard:
    """Passes requests to the app, or refuses them."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._wrong = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request; pass it to the app or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the console has no WebSocket
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        refused = ambiguous_end(headers) or wrong_host(headers, self._access.hosts)
        refused = refused or wrong_site(scope["method"], headers)
        refused = refused or await self._stranger(scope, headers)
        await (refused or self._app)(scope, receive, with_headers)

    async def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal for a client without a valid login, else store the user in ``scope["user"]``."""
        access = self._access
        scope["user"] = ""
        if not access.asks:
            return None
        if access.user_header is not None and access.is_proxy(_peer(scope)):
            given = headers.getlist(access.user_header)
            # The client sent this header too, and the proxy's one cannot be identified
            if len(given) > 1:
                return _refusal(401, f"More than one {access.user_header} header came: have the proxy replace it.")
            user = "".join(given).strip()
            if user:
                scope["user"] = in_one_line(user)[:200]
                return None
            if access.password is None:
                return _refusal(401, f"The proxy in front of the console sent no {access.user_header} header.")
        if access.password is None:
            return _refusal(403, "This console is reached through its proxy only.")
        user, password = _credentials(headers.get("authorization", ""))
        if password is not None and hmac.compare_digest(digest(password), access.password):
            scope["user"] = in_one_line(user)[:200]
            return None
        if password is not None:
            return await self._guessed()
        return _ask("This console needs its password; any user name is accepted.")

    async def _guessed(self) -> Response:
        """Return the refusal of a wrong password, after a delay that slows down guessing."""
        if self._wrong >= _WRONG_AT_ONCE:
            return _refusal(429, "Too many wrong passwords at once: try again in a moment.")
        self._wrong += 1
        try:
            await asyncio.sleep(_SLOW)
        finally:
            self._wrong -= 1
        return _ask("The password is wrong.")


def ambiguous_end(headers: Headers) -> Response | None:
    """Return the refusal of a request with both Content-Length and Transfer-Encoding.

    A proxy that uses the other header would read the remainder as a new request.
    """
    if "content-length" not in headers or "transfer-encoding" not in headers:
        return None
    refused = _refusal(400, "A request has Content-Length or Transfer-Encoding, not both.")
    refused.headers["connection"] = "close"
    return refused


def wrong_host(headers: Headers, known: Iterable[str]) -> Response | None:
    """Return the refusal of a request whose host name is not the console's.

    IP addresses are always accepted, since DNS rebinding needs a name.
    """
    given = headers.getlist("host")
    name = host_name(given[0]) if len(given) == 1 else None
    if name is not None and (name in known or name == "localhost" or _is_number(name)):
        return None
    said = in_one_line(name or "without a name")[:200]
    return _refusal(
        421,
        f"This console does not accept the host name {said}. Open the address that it printed at its start, or start "
        "it with --allow-host and this name.",
    )


_FOREIGN = (
    "Nothing was changed: the header Origin is missing, or names another site. Send the change from a page of this "
    "console; a script sends Origin with the console's own address."
)


def wrong_site(method: str, headers: Headers) -> Response | None:
    """Return the refusal of a request that another site's page made the browser send."""
    site = _all_of(headers, "sec-fetch-site")
    if method in _SAFE:
        # Following a link is allowed, but a request by the page itself, for example for an image, is not
        if site is None or site in _HERE or headers.get("sec-fetch-mode") == "navigate":
            return None
        return _refusal(403, "A page of another site sent this request; the console answers only its own pages.")
    origin = _all_of(headers, "origin")
    if site is not None and site not in _HERE:
        return _refusal(403, "A page of another site sent this change; nothing was changed.")
    if origin is None or not _is_own(origin, headers.get("host", "")):
        return _refusal(403, _FOREIGN)
    return None


def host_name(host: str) -> str | None:
    """Return the name or address in a ``Host`` header, lower case and without port; None if it is invalid."""
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        return name if bracket and (not rest or _is_port(rest)) else None
    name, colon, port = host.lower().partition(":")
    return name.removesuffix(".") if name and (not colon or _is_port(f":{port}")) else None


def _is_port(text: str) -> bool:
    return text[:1] == ":" and text[1:].isascii() and text[1:].isdigit()


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_own(origin: str, host: str) -> bool:
    scheme, mark, place = origin.partition("://")
    return bool(mark) and scheme in {"http", "https"} and place.lower() == host.lower()


def _all_of(headers: Headers, name: str) -> str | None:
    """Return all values of a header as one; None if it is missing. A repeated header matches no known value."""
    return ", ".join(headers.getlist(name)) or None


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _credentials(header: str) -> tuple[str, str | None]:
    """Return user and password of HTTP basic authentication; None as password if the header has none."""
    scheme, _, coded = header.partition(" ")
    if scheme.lower() != "basic":
        return "", None
    try:
        text = base64.b64decode(coded.strip(), validate=True).decode(errors="surrogateescape")
    except (binascii.Error, ValueError):
        return "", ""
    user, _, password = text.partition(":")
    return user, password


def _refusal(status: int, words: str) -> Response:
    return PlainTextResponse(words + "\n", status)


def _ask(words: str) -> Response:
    return PlainTextResponse(
        words + "\n", 401, {"www-authenticate": 'Basic realm="Millstream console", charset="UTF-8"'}
    )
