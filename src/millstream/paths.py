"""Names of files and directories as users give them: of this machine, never of another place by mistake."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millstream.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_path(given: str | Path) -> Path:
    """The absolute path that is meant, which may not exist.

    A URL of another kind (``s3://bucket/x``) would otherwise name a directory ``s3:`` below the working directory, and
    what is written there is gone with the machine. ``pathlib`` has made ``s3:/bucket/x`` of it, which is refused too.

    Args:
        given: a path, or a ``file:`` URL.

    Raises:
        ConfigError: it is empty, or a URL of something else.
    """
    text = str(given)
    if not text.strip():
        raise ConfigError("it is empty: name a directory or a file of this machine")
    found = _SCHEME.match(text)
    if found is None:
        return Path(text).absolute()
    parts = urlsplit(text)
    if found[1].lower() != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"{text!r} is a URL, and this must be on a file system of this machine: give a path (/data/orders, also of "
            "a mounted one) or file:///data/orders"
        )
    return Path(unquote(parts.path)).absolute()
