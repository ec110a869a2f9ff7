"""Paths and URLs of files, directories and archives that users give."""

import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millstream.errors import ConfigError
from millstream.texts import plural

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

_STORES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfss": "abfss"}
_BUCKET = {
    "s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "gs": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "abfss": re.compile(r"[A-Za-z0-9$][A-Za-z0-9-]*@[a-z0-9]+\.[A-Za-z0-9.-]+"),
}
_PREFIX = re.compile(r"(?:/[A-Za-z0-9_.=-]+)*")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LIKE = "s3://bucket/prefix, gs://bucket/prefix or abfss://container@account.dfs.core.windows.net/prefix"


def packaged(package: str, name: str) -> str:
    """Return the text of a file in a package, which may be in a zip archive."""
    from importlib import resources  # noqa: PLC0415 - a server that starts reads no such file

    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def sync_directory(directory: Path) -> None:
    """Sync a directory. A rename is durable only afterwards."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def local_path(given: str | Path) -> Path:
    """Return the absolute path of a file or directory, which may not exist.

    URLs of other file systems are refused: ``s3://bucket/x`` would name a directory ``s3:`` in the working directory,
    and its files would be lost with the machine. ``s3:/bucket/x``, into which ``pathlib`` turns that URL, is refused
    too.
    """
    text = str(given)
    if not text.strip():
        raise ConfigError("it is empty. Give a directory or a file of this machine.")
    found = _SCHEME.match(text)
    if found is None:
        return Path(text).absolute()
    parts = urlsplit(text)
    if found[1].lower() != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"{text!r} is a URL, and this must be on a file system of this machine, which may be mounted. Give a path "
            "such as /data/orders, or file:///data/orders."
        )
    return Path(unquote(parts.path)).absolute()


def archive_place(given: str | Path) -> Path | str:
    """Return the location of an archive: the absolute path of a directory, or a URL in an object store."""
    text = str(given)
    found = _SCHEME.match(text)
    if found is None or found[1].lower() == "file":
        return local_path(given)
    scheme = _STORES.get(found[1].lower())
    if scheme is None:
        raise ConfigError(
            f"an archive cannot lie at {found[1]}. Give {_LIKE}, or a directory of this machine, also a mounted one."
        )
    bucket, slash, prefix = text[found.end() :].removeprefix("/").partition("/")
    prefix = (slash + prefix).rstrip("/")
    parts = prefix.split("/")[1:]
    fits = _BUCKET[scheme].fullmatch(bucket) and _PREFIX.fullmatch(prefix) and not {".", ".."} & set(parts)
    if not text[found.end() :].startswith("/") or not fits:
        # The URL is not quoted, since it may contain a password
        raise ConfigError(
            f"the URL of the archive is invalid. Write {_LIKE}, with ASCII letters, digits and _ . = - in names; "
            "credentials belong in the environment, never into the URL."
        )
    return f"{scheme}://{bucket}{prefix}"


def exposed(directory: Path) -> str:
    """Return a sentence about the rights of other users in a data directory and the remedy; empty if they have none.

    If the directory itself is closed to others, they cannot reach its files, even where the files' modes allow it.
    """
    try:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if not mode & _OTHERS:
            return ""
        open_files = sorted(path.name for path in directory.iterdir() if path.lstat().st_mode & _OTHERS)
    except OSError:  # the next access reports a better error
        return ""
    files = (
        f", and have rights on {plural(len(open_files), 'file')} in it, such as {open_files[0]}" if open_files else ""
    )
    return (
        f"others on this machine may enter or list {directory} (mode {mode:04o}){files}; "
        f"unless that is intended, `chmod -R go= {directory}` keeps the data to its owner"
    )
