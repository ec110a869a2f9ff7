"""Checks of a URL's text before any connection: the kind of server, the faults, the secrets in it.

This module does not load a client. Spark imports it whenever it looks for a data source, and the CLI for help.
``millstream.client.connect`` makes the clients themselves.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from millstream.errors import ConfigError, Disconnected
from millstream.printable import without_password, without_secrets

SENTINELS = "redis+sentinel://"
CLUSTERS = "redis+cluster://"
PLAIN = "redis://"
SERVERS = (PLAIN, "rediss://", "unix://", SENTINELS, CLUSTERS)
EMBEDDED = ("memory://", "file://")
SCHEMES = SERVERS + EMBEDDED
REPORT = "report:"
"""Scheme of the URL of a file that `millstream report` wrote, which is read in place of a server."""

DEFAULT_URL = "redis://127.0.0.1:6379/0"

_ENCODED = "in a password, / ? # @ [ ] are written percent-encoded: %2F %3F %23 %40 %5B %5D"


def find_url(given: str | None = None) -> str:
    """Return the given URL, else that of ``MILLSTREAM_URL`` or ``REDIS_URL``, else that of a server on this machine."""
    return given or url_of_environment() or DEFAULT_URL


def url_of_environment() -> str | None:
    """Return the value of ``MILLSTREAM_URL`` or else ``REDIS_URL``; None if neither is set."""
    return os.environ.get("MILLSTREAM_URL") or os.environ.get("REDIS_URL") or None


_LOGIN = re.compile("username-password pair|without any password configured|WRONGPASS|NOAUTH|already authenticated")


def login_refused(error: Exception) -> bool:
    """Return True if a server answered and refused the user or the password. The error may be a cluster's."""
    return _LOGIN.search(str(error)) is not None


def remedy(url: str, error: Exception, start: str = "Start the server") -> str:
    """The next step for a server without a connection: to start it, or to correct a login or a certificate."""
    reason = str(error)
    if login_refused(error):
        own = "no Sentinel of" in reason
        return (
            "Give the Sentinels' password in the URL (?sentinel_password=)" if own else "Give a valid user and password"
        )
    if not url.startswith("rediss://"):
        return start
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "Give the server's authority in the URL (?ssl_ca_certs=FILE), correct the server's certificate"
    if "no such file" in reason:
        return "Correct the files in the URL"
    if "ssl_certfile" not in url and re.search("closed|pipe|reset", reason):  # TLS 1.3 gives no clearer error
        return f"{start}, give a client certificate if it requires one (?ssl_certfile=FILE&ssl_keyfile=FILE)"
    return start


def no_connection(url: str, error: Exception) -> str:
    """Return the beginning of an error text: the server that cannot be reached, and the reason without its address."""
    reason = without_secrets(str(error)).rstrip(".")
    parts = urlsplit(url)
    if place := parts.netloc.rpartition("@")[2] or parts.path:
        reason = re.sub(rf" at {re.escape(place)}(?![\w.:])", "", reason)
    if login_refused(error):
        reason = f"the server refuses the login: {reason}"
    return f"cannot connect to {without_password(url)}: {reason}."


def unreached(url: str, error: Exception) -> str:
    """Return the error text for a server that cannot be reached, with the ways to name another."""
    step = remedy(url, error)
    return f"{no_connection(url, error)} {step}, or give another URL with --url, MILLSTREAM_URL or REDIS_URL."


@contextlib.contextmanager
def advised(url: str) -> Iterator[None]:
    """Add the server and the remedy to the error for a server that a program's own code cannot reach."""
    try:
        yield
    except Disconnected as error:
        if error.sent:
            raise
        step = remedy(url, error)
        if step.startswith("Start"):
            step += ', or give its URL: App("redis://host:6379") or MILLSTREAM_URL. '
            step += 'publish(retry="30s") waits for a server that starts.'
        else:
            step += ", or correct the URL."
        raise Disconnected(f"{no_connection(url, error)} {step}", sent=False) from error


def split(url: str) -> SplitResult:
    """Return the parts of a URL."""
    try:
        return urlsplit(url)
    except ValueError:
        raise ConfigError(f"{kind_of(url)} is invalid: it is not a URL ({_ENCODED})") from None


def wrong(url: str) -> str | None:
    """Return the fault of one server's URL; None if it is valid.

    redis-py takes a database that is not a number for database 0, and port 0 for 6379: another application's data.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"it is not a URL ({_ENCODED})"
    asked = parse_qs(parts.query).get("db")
    if asked and not re.fullmatch(r"[0-9]+", asked[0]):
        return "its db is not the number of a database. Write it as in ?db=1"
    if parts.scheme == "unix":
        return None
    try:
        port = parts.port
    except ValueError:  # the exception's text quotes the port, which may be part of a password
        return f"its port is not a number from 1 to 65535 ({_ENCODED})"
    if not asked and not re.fullmatch(r"/?[0-9]*/?", unquote(parts.path)):
        return "the part after the port must be the number of a database, as in redis://127.0.0.1:6379/0"
    return "there is no port 0" if port == 0 else None


_SCHEME = re.compile(r"(redis|rediss|unix|redis\+sentinel|redis\+cluster|memory|file|https?)://", re.IGNORECASE)


def kind_of(url: str) -> str:
    """Return the part of a refused URL that an error may show: its scheme, if it is a common one.

    In a faulty URL any other part may belong to the password.
    """
    found = _SCHEME.match(url)
    return f"the {found[0]} URL" if found is not None else "the URL"


def check_url(url: str) -> str:
    """Return the URL, after a check that its scheme is supported and it is valid."""
    if url.startswith(REPORT):
        raise ConfigError(
            "a recorded report cannot be used here. Use it with `millstream console --report FILE`, or with commands "
            "that query a server once, such as `millstream group ls --url report:FILE`."
        )
    if not url.startswith(SCHEMES):
        raise ConfigError(
            f"cannot use {kind_of(url)}: a server URL starts with one of {', '.join(SCHEMES)}, for example "
            "redis://127.0.0.1:6379/0"
        )
    if not url.startswith((SENTINELS, CLUSTERS, *EMBEDDED)) and (fault := wrong(url)) is not None:
        raise ConfigError(f"cannot use {kind_of(url)}: {fault}")
    return url


def check_shared(url: str) -> str:
    """Return the URL, after a check that all clients of this process see the same data there; a report's is allowed."""
    if url.startswith(REPORT):
        return url
    if check_url(url).startswith("memory://") and not urlsplit(url).netloc:
        raise ConfigError("memory:// is private to one client. Give it a name, as in memory://orders.")
    return url


def check_remote(url: str) -> str:
    """Return the URL, after a check that other processes reach the same data there."""
    if check_url(url).startswith(EMBEDDED):
        raise ConfigError(
            f"{kind_of(url)} lives in one process, and this needs several. Run `millstream serve --dir DIR` and give "
            "the URL it prints."
        )
    return url


def db_label(url: str) -> str:
    """Return the database as redis_exporter names it in the labels of metrics: ``"db0"``."""
    parts = urlsplit(url)
    asked = parse_qs(parts.query).get("db", [parts.path.strip("/")])[0]
    return f"db{asked if asked.isdecimal() else 0}"
