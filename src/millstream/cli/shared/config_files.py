"""The files that name servers: a user's ``config.toml`` with contexts, and a project's ``millstream.toml``.

A writer of such a file controls a command's server, and the file that is sent as a password. So a file is refused if
another user owns it or may write it. The user's own file is also refused if others may read it. The files contain no
passwords: a context names the source of its password. tomlkit is loaded only to write a file, and keeps comments.
"""

import contextlib
import fcntl
import grp
import os
import pwd
import re
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.client.url import check_shared
from millstream.errors import ConfigError, NotFoundError
from millstream.printable import has_password

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Valid names of contexts, which need no quotes in a shell or in TOML."""

PROJECT = "millstream.toml"

_MOST = 1 << 20  # largest number of bytes read from a file
_PASSWORDS = ("password-env", "password-file", "password-prompt")


class NoContextError(NotFoundError):
    """No context has that name; the message lists the existing ones.

    What to do: use one of those, or make the context with `millstream context add`.
    """


@dataclass(frozen=True, slots=True)
class ServerContext:
    """A named server."""

    name: str  # Name of the context
    url: str = field(repr=False)  # URL of the server, without a password
    user: str = ""  # User name; empty for the URL's user or the default user
    password_env: str = ""  # Environment variable that contains the password; empty for none
    password_file: str = ""  # File whose first line is the password; empty for none
    password_prompt: bool = False  # Prompt for the password at the terminal each time
    production: bool = False  # Changes require the context's name on the command line

    @property
    def password(self) -> str:
        """Text about the source of the password; empty if there is none."""
        if self.password_env:
            return f"the environment variable {self.password_env}"
        if self.password_file:
            return f"the file {self.password_file}"
        return "asked for at the terminal" if self.password_prompt else ""


@dataclass(frozen=True, slots=True)
class UserConfig:
    """A user's ``config.toml``."""

    path: Path  # Path of the file, which may not exist
    context: str = ""  # Name of the current context; empty for none
    contexts: Mapping[str, ServerContext] = field(default_factory=dict)  # Contexts by name, in the order of the file

    def named(self, name: str) -> ServerContext:
        """Return the context with this name."""
        if (found := self.contexts.get(name)) is not None:
            return found
        there = f"these are: {', '.join(self.contexts)}" if self.contexts else "there are none yet"
        raise NoContextError(f"{self.path} has no context {name!r}; {there}; `millstream context add` adds one")


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """A project's ``millstream.toml``: a server's URL or the name of a user's context, for this directory."""

    path: Path
    url: str = ""
    context: str = ""


def user_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's file, even if it does not exist."""
    base = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the XDG specification ignores relative paths
        base = Path(environment.get("HOME") or "~").expanduser() / ".config"
    return base / "millstream" / "config.toml"


def read_user(path: Path) -> UserConfig:
    """Read the user's file. A missing file has no contexts."""
    text = _trusted(path, private=True)
    if text is None:
        return UserConfig(path)
    found = _table(path, _parsed(path, text), {"context": str, "contexts": dict})
    contexts = {}
    for name, entry in found.get("contexts", {}).items():
        if not NAME.fullmatch(name) or not isinstance(entry, dict):
            raise ConfigError(
                f"{path} is invalid: [contexts.{name}] is not a context. See `millstream context add --help`."
            )
        contexts[name] = context_of(path, name, entry)
    return UserConfig(path, found.get("context", ""), contexts)


def read_project(start: Path) -> ProjectConfig | None:
    """Read the ``millstream.toml`` of a directory or the nearest one above it; return None if there is none."""
    for folder in (start, *start.parents):
        path = folder / PROJECT
        text = _trusted(path, private=False)
        if text is None:
            continue
        found = _table(path, _parsed(path, text), {"url": str, "context": str})
        if len(found) != 1:
            raise ConfigError(f"{path} is invalid: it names no server, or two. Write either url or context.")
        if "url" in found:
            check_url(str(path), found["url"])
        return ProjectConfig(path, **found)
    return None


def context_of(path: Path, name: str, entry: Mapping[str, Any]) -> ServerContext:
    """Return a context from its table in the file."""
    kinds = {"url": str, "user": str, "production": bool, **dict.fromkeys(_PASSWORDS, str), "password-prompt": bool}
    place = f"{path}: [contexts.{name}]"
    if "password" in entry:
        raise ConfigError(f"{place} is invalid: a password must not be in this file. Give its source with {_either()}.")
    found = _table(place, entry, kinds)
    if "url" not in found:
        raise ConfigError(f"{place} is invalid: it has no url. Write one, such as redis://127.0.0.1:6379/0.")
    if sum(bool(found.get(each)) for each in _PASSWORDS) > 1:
        raise ConfigError(f"{place} is invalid: it has two sources of the password. Give one of {_either()}.")
    check_url(place, found["url"])
    if "@" in found["url"] and found.get("user"):
        raise ConfigError(f"{place} is invalid: the URL has a user too. Leave one of them out.")
    return ServerContext(name, **{word.replace("-", "_"): value for word, value in found.items()})


def check_url(place: str, url: str) -> None:
    """Refuse a URL with a password, or one that several processes cannot share."""
    if has_password(url):
        raise ConfigError(f"{place} is invalid: the url has a password. Remove it, and use {_either()}.")
    try:
        check_shared(url)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def change_user(path: Path, change: "Callable[[TOMLDocument], None]") -> None:
    """Change the user's file, keep its comments, and replace it in one step."""
    import tomlkit  # noqa: PLC0415 - commands that only read do not load it

    path = path.resolve()  # a symbolic link stays a link
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.parent):
            text = _trusted(path, private=True) or ""
            _parsed(path, text)
            document = tomlkit.parse(text)
            change(document)
            _replace(path, tomlkit.dumps(document))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other ``millstream`` processes, so that two contexts added at once are both kept."""
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _replace(path: Path, text: str) -> None:
    """Replace a file in one step: a reader sees the old text or the new one."""
    # Created with permissions for its owner only
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".config", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _trusted(path: Path, *, private: bool) -> str | None:
    """Return the contents of a file that no other user can have written; None if it does not exist."""
    try:
        # O_NONBLOCK: without it, opening a pipe would wait for a writer
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    try:
        _check_owner(path, os.fstat(opened), private=private)
        content = os.read(opened, _MOST + 1)
    finally:
        os.close(opened)
    if len(content) > _MOST:
        raise ConfigError(f"{path} is invalid: it is larger than {_MOST >> 20} MiB. Replace or remove it.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is invalid: it is not UTF-8 text. Correct or remove it.") from None


def _check_owner(path: Path, status: os.stat_result, *, private: bool) -> None:
    """Refuse a file that another user may have written."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a file. Replace or remove it.")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path} belongs to another user (uid {status.st_uid}), who could direct commands to another server. "
            "Remove it, or take ownership of it."
        )
    if status.st_mode & (0o077 if private else 0o002 if _is_own_group(status) else 0o022):
        what, cure = ("read or write", "600") if private else ("write", "go-w")
        raise ConfigError(f"{path} is not used, since other users may {what} it. Run chmod {cure} {path}.")


def _is_own_group(status: os.stat_result) -> bool:
    """Return True if only the owner is in the file's group.

    Many systems give each user such a group, which may have the right to write.
    """
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:  # one of them has no name, so the members are unknown
        return False
    return owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name and set(group.gr_mem) <= {owner.pw_name}


def _parsed(path: Path, text: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is invalid: it is not TOML ({str(error) or 'it is nested too deeply'}). Correct or remove it."
        ) from None


def _table(place: object, table: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Check a table and return it: each key must be known and have a value of its type."""
    for word, value in table.items():
        if word not in kinds:
            raise ConfigError(f"{place} is invalid: {word!r} is unknown. Write one of {', '.join(kinds)}.")
        if type(value) is not kinds[word]:
            what = {str: "text in quotes", bool: "true or false", dict: "a table"}[kinds[word]]
            raise ConfigError(f"{place} is invalid: {word} must be {what}.")
    return dict(table)


def _either() -> str:
    return f"{', '.join(_PASSWORDS[:-1])} or {_PASSWORDS[-1]}"
