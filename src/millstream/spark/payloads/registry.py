"""A schema registry, read over HTTP by Confluent's API: the schema of an id, and the latest of a subject.

A schema never changes under its id, so each process fetches it once. An unknown id is tried again after a while: its
producer may have registered it since.
"""

import base64
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from millstream.client.url import split
from millstream.errors import ConfigError, NotLetInError, NotReachedError
from millstream.printable import without_password
from millstream.spark.connection.retry import retrying

PATIENCE = 10.0
"""Seconds for which a silent registry is tried again, and most seconds of one reply."""

UNKNOWN_SECONDS = 10.0
"""Seconds for which an id counts as unknown."""

_MOST_BYTES = 16 << 20


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: the password is for the named registry only, not for another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the library's
        return None


class Registry:
    """A schema registry."""

    def __init__(self, url: str) -> None:
        parts = split(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "the registry's URL is invalid. Write that of a schema registry, such as http://127.0.0.1:8081."
            )
        self.shown = without_password(url)
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        place = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        self._opener = build_opener(_NoRedirects)

    def by_id(self, ident: int) -> Any:
        """Return the schema of an id as parsed JSON; None if the registry does not have it."""
        found = self._ask(f"/schemas/ids/{ident}")
        return None if found is None else self._avro(found, f"schema {ident}")

    def latest(self, subject: str) -> Any:
        """Return the latest schema of a subject."""
        found = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest")
        if found is None:
            raise ConfigError(
                f"the registry {self.shown} has no subject {subject!r}. Correct the name, or give a schema."
            )
        return self._avro(found, f"the latest schema of {subject!r}")

    def _avro(self, found: Mapping[str, Any], what: str) -> Any:
        kind = found.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise ConfigError(f"{what} in {self.shown} is {kind}, and only Avro is read")
        if found.get("references"):
            raise ConfigError(f"{what} in {self.shown} refers to schemas of other subjects, which is not supported")
        try:
            return json.loads(found["schema"])
        except (KeyError, TypeError, ValueError):
            raise ConfigError(f"{what} in {self.shown} cannot be read: {found!r:.200}") from None

    def _ask(self, path: str) -> Mapping[str, Any] | None:
        """Return the registry's reply at a path; None for "not found"."""
        request = Request(self._url + path, headers=self._headers)  # noqa: S310 - http and https alone, see above
        try:
            return retrying(lambda: self._answer(request), PATIENCE)
        except OSError as reason:
            raise NotReachedError(f"the schema registry {self.shown} does not answer ({reason}): start it") from None

    def _answer(self, request: Request) -> Mapping[str, Any] | None:
        try:
            with self._opener.open(request, timeout=PATIENCE) as reply:
                body = reply.read(_MOST_BYTES)
        except HTTPError as refused:
            with refused:
                if refused.code == 404:
                    return None
                if refused.code in (401, 403):
                    raise NotLetInError(
                        f"the schema registry {self.shown} refuses the user ({refused.code}): name one in its URL, "
                        "http://user:password@host"
                    ) from None
                if refused.code >= 500:
                    raise ConnectionError(f"{refused.code} {refused.reason}") from None
                raise ConfigError(
                    f"registry {self.shown} answered {refused.code} {refused.reason}. Check its URL."
                ) from None
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConfigError(f"registry {self.shown} did not send JSON. Check its URL.")
        return found


def forget() -> None:
    """Drop all cached schemas, as in a new process."""
    _known.clear()
    _unknown.clear()


_known: dict[tuple[str, int], Any] = {}
_unknown: dict[tuple[str, int], float] = {}


def schema_of(url: str, ident: int) -> Any:
    """Return the schema of an id, fetched once a process; None if the registry does not have it."""
    at = (url, ident)
    if at not in _known:
        if time.monotonic() < _unknown.get(at, 0.0):
            return None
        found = Registry(url).by_id(ident)
        if found is None:
            _unknown[at] = time.monotonic() + UNKNOWN_SECONDS
            return None
        _known[at] = found
    return _known[at]
