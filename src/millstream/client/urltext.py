"""What the text of a URL says before anybody connects: mistakes that redis-py passes over, and the secrets in it.

Loads no client, since Spark imports it whenever it looks for a data source.
"""

import re
from urllib.parse import parse_qs, unquote, urlsplit


def wrong(url: str) -> str | None:
    """What is wrong with the URL of one server, None if nothing is.

    redis-py takes a database that is no number for database 0, and port 0 for 6379: somebody else's data.
    """
    parts = urlsplit(url)
    asked = parse_qs(parts.query, keep_blank_values=True).get("db", ["0"])[-1]
    if not re.fullmatch(r"[0-9]+", asked):
        return f"db={asked} is no number of a database: ?db=1 would be one"
    if parts.scheme == "unix":
        return None
    if not re.fullmatch(r"/?[0-9]*/?", unquote(parts.path)):
        return "what follows the port is the number of a database, as in redis://127.0.0.1:6379/0"
    try:
        port = parts.port
    except ValueError as reason:
        return f"{reason}"
    return "there is no port 0" if port == 0 else None


def without_password(url: str) -> str:
    """The URL for messages."""
    url = re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url)
    return re.sub(r"(password=)[^&'\"]*", r"\1***", url)
