"""What the text of a URL says before anybody connects: mistakes that redis-py passes over, and the secrets in it.

Loads no client, since Spark imports it whenever it looks for a data source.
"""

import os
import re
from urllib.parse import parse_qs, unquote, urlsplit

DEFAULT_URL = "redis://127.0.0.1:6379/0"

_ENCODED = "in a password, / ? # @ [ ] are written percent-encoded: %2F %3F %23 %40 %5B %5D"


def find_url(given: str | None = None) -> str:
    """The URL that is meant: the one given, else ``MILLSTREAM_URL`` or ``REDIS_URL``, else a server on this machine."""
    return given or url_of_environment() or DEFAULT_URL


def url_of_environment() -> str | None:
    """What ``MILLSTREAM_URL`` or else ``REDIS_URL`` says; None where neither is set."""
    return os.environ.get("MILLSTREAM_URL") or os.environ.get("REDIS_URL") or None


def unreached(url: str, error: Exception) -> str:
    """One sentence for a server that cannot be talked to: which one it is, and how another is named."""
    return (
        f"cannot talk to {without_password(url)} ({str(error).rstrip('.')}): start the server, or name another by "
        "--url, MILLSTREAM_URL or REDIS_URL"
    )


def wrong(url: str) -> str | None:
    """What is wrong with the URL of one server, None if nothing is.

    redis-py takes a database that is no number for database 0, and port 0 for 6379: somebody else's data.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"it cannot be taken apart ({_ENCODED})"
    asked = parse_qs(parts.query).get("db")
    if asked and not re.fullmatch(r"[0-9]+", asked[0]):
        return f"db={asked[0]} is no number of a database: ?db=1 would be one"
    if parts.scheme == "unix":
        return None
    try:
        port = parts.port
    except ValueError:  # its text has what stands there, which may be a part of a password
        return f"its port is no number from 1 to 65535 ({_ENCODED})"
    if not asked and not re.fullmatch(r"/?[0-9]*/?", unquote(parts.path)):
        return "what follows the port is the number of a database, as in redis://127.0.0.1:6379/0"
    return "there is no port 0" if port == 0 else None


_PASSWORD = re.compile(r"(://[^:/@\s]*):[^/?#\s]*@")
_BROKEN = re.compile(r"(://[^:/@\s]*):(?!\d*(?:[/?#\s]|$))\S*@")
"""A password with characters that should have been encoded, so that it does not end where the server's name begins."""


def without_password(url: str) -> str:
    """The URL, or a text with URLs in it, for messages."""
    url, hidden = _PASSWORD.subn(r"\1:***@", url)
    if not hidden:
        url = _BROKEN.sub(r"\1:***@", url)
    return re.sub(r"(password=)[^&'\"]*", r"\1***", url)
