"""The choice of a command's server: an option, the environment, a project's file, the user's file, or the default.

The first of these that names a server decides. A context's password is read from its source only when its server is
used. From then on it is part of the URL, which is always shown without it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit, urlunsplit

import click

from millstream.cli.shared import config_files
from millstream.cli.shared.confirm import PRODUCTION
from millstream.cli.shared.secret_files import first_line
from millstream.client.url import DEFAULT_URL
from millstream.errors import ConfigError, UsageError
from millstream.printable import has_password, printable, without_password

GIVEN = "millstream.context"
"""Key in click's context for the value of ``--context``."""

USED = "millstream.used"
"""Key in click's context for the name of the context that provides the server of a command without a URL."""

_CONTEXT = "MILLSTREAM_CONTEXT"
_URLS = ("MILLSTREAM_URL", "REDIS_URL")


class NoServerError(click.BadParameter):
    """No named server can be used. The message is one sentence without click's usage, which is not wrong."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence, with the command's name."""
        name = "millstream" if self.ctx is None else self.ctx.command_path
        click.echo(f"{name}: {self.message}", file=file, err=file is None)


class UnknownContextError(NoServerError):
    """No context has the given name."""

    exit_code = config_files.NoContextError.exit_code


@dataclass(frozen=True, slots=True)
class ServerSource:
    """A source that names a server."""

    origin: str  # Description of the source, for messages
    url: str = field(default="", repr=False)  # URL that the source names; empty if it names a context
    context: str = ""  # Context that the source names; empty if it names a URL
    explicit: bool = False  # True for ``--context`` on the command line


@dataclass(slots=True)
class ServerChoice:
    """The choice of a server from the command line, the environment and the files."""

    url: str | None = field(default=None, repr=False)
    context: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    folder: Path | None = None
    _user: config_files.UserConfig | None = None

    @property
    def user(self) -> config_files.UserConfig:
        """The user's file, read once."""
        if self._user is None:
            self._user = config_files.read_user(config_files.user_path(self.environment))
        return self._user

    def sources(self) -> Iterator[ServerSource]:
        """Yield the sources that name a server; the first decides. A file is read only when its turn comes."""
        if self.url and self.context:
            raise UsageError("--url and --context both name a server: leave one out")
        if self.context:
            yield ServerSource("--context", context=self.context, explicit=True)
        if self.url:
            yield ServerSource("--url", self.url)
        yield from self._of_environment()
        if (project := config_files.read_project(self.folder or Path.cwd())) is not None:
            yield ServerSource(str(project.path), project.url, project.context)
        if self.user.context:
            yield ServerSource(str(self.user.path), context=self.user.context)
        yield ServerSource("default", DEFAULT_URL)

    def _of_environment(self) -> Iterator[ServerSource]:
        given = {name: self.environment[name] for name in (_CONTEXT, *_URLS) if self.environment.get(name)}
        if _CONTEXT in given and _URLS[0] in given and not (self.url or self.context):
            raise UsageError(f"{_CONTEXT} and {_URLS[0]} are both set and both name a server: unset one")
        for name, value in given.items():
            yield ServerSource(name, context=value) if name == _CONTEXT else ServerSource(name, value)

    def named(self) -> config_files.ServerContext | None:
        """Return the chosen context; None if a URL is chosen."""
        source = next(self.sources())
        return self.user.named(source.context) if source.context else None


def context_url(
    context: config_files.ServerContext, environment: Mapping[str, str], ask: Callable[[str], str] | None
) -> str:
    """Return the URL of a context, with user and password in it."""
    password = _password(context, environment, ask)
    if not password and not context.user:
        return context.url
    parts = urlsplit(context.url)
    named, _, place = parts.netloc.rpartition("@")
    user = quote(context.user, safe="") if context.user else named
    secret = f":{quote(password, safe='', errors='surrogateescape')}" if password else ""
    return urlunsplit(parts._replace(netloc=f"{user}{secret}@{place}"))


def _password(
    context: config_files.ServerContext, environment: Mapping[str, str], ask: Callable[[str], str] | None
) -> str:
    said = f"the context {context.name!r} has its password in"
    if context.password_env:
        if found := environment.get(context.password_env):
            return found
        raise ConfigError(f"{said} the environment variable {context.password_env}, which is not set")
    if context.password_file:
        path = Path(context.password_file).expanduser()
        try:
            found = first_line(path)
        except OSError as error:
            raise ConfigError(f"{said} {path}, which cannot be read: {error.strerror}") from None
        if not found:
            raise ConfigError(f"{said} the first line of {path}, which is empty")
        return found
    if not context.password_prompt:
        return ""
    if ask is None:
        raise UsageError(f"the context {context.name!r} prompts for its password, and there is no terminal")
    return ask(f"Password of {context.name}")


def ask_password(text: str) -> str:
    """Read a password from the terminal."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"{text}: there is no terminal to prompt at; give the context a password-env or a password-file"
        )
    answer: str = click.prompt(text, hide_input=True, err=True)
    return answer


def given_context(ctx: click.Context, param: click.Parameter, value: str | None) -> None:  # noqa: ARG001 - click's signature
    """Store the value of ``--context`` for :func:`given_url`; it becomes no argument of the command."""
    ctx.meta[GIVEN] = value


def given_url(ctx: click.Context, param: click.Parameter | None, value: str | None) -> str | None:  # noqa: ARG001 - click's signature
    """Return the URL of the chosen server, as the argument of a command."""
    if ctx.resilient_parsing:  # a shell requests completions, so no prompt may appear
        return value
    choice = ServerChoice(value, ctx.meta.get(GIVEN))
    try:
        source = next(choice.sources())
        return source.url or _used(ctx, choice.user.named(source.context), explicit=source.explicit)
    except UsageError as error:
        raise _no_server(error, ctx) from None


def usual_url() -> str:
    """Return the chosen URL for a command without ``--url``."""
    return given_url(click.get_current_context(), None, None) or DEFAULT_URL


def only_given_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the URL for an app with its own server: None unless the command line or environment names another."""
    named = value or ctx.meta.get(GIVEN) or os.environ.get(_CONTEXT)
    return given_url(ctx, param, value) if named else None


def context_named(name: str) -> str:
    """Return the URL of a context that the command line names, with its password."""
    return context_url(ServerChoice().user.named(name), os.environ, ask_password)


def server_and_rest(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the server and the other arguments of a command without ``--url``.

    The server is that of ``--context``, or else the first argument.
    """
    ctx = click.get_current_context()
    named = bool(words) and ("://" in words[0] or words[0].startswith("context:"))
    if not ctx.meta.get(GIVEN):
        if not words:
            raise UsageError("the server is missing: give its URL, or --context NAME")
        return ServerUrl(secret=True).convert(words[0], None, ctx), words[1:]
    if named:
        raise UsageError("--context and a URL both name a server: leave one out")
    return usual_url(), words


def without_secret(url: str) -> str:
    """Return a URL of the command line. Refuse one with a password, which all users of the machine can see."""
    if has_password(url):
        raise UsageError(
            f"{without_password(url)} has a password in it, which all users of this machine can see (ps). Put it "
            "where a context finds it (`millstream context add --help`) and give context:NAME; console and "
            "replicas also take MILLSTREAM_URL, or @FILE, with URLs in a file that only you can read"
        )
    return url


class ServerUrl(click.ParamType[str]):
    """A server's URL as an argument; ``context:NAME`` means the URL of that context."""

    name = "url"

    def __init__(self, *, secret: bool = False) -> None:
        self._secret = secret

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's signature
        """Return the URL."""
        scheme, _, name = str(value).partition(":")
        if ctx is not None and ctx.resilient_parsing:
            return str(value)
        try:
            if scheme == "context":
                return context_named(name)
            return str(value) if self._secret else without_secret(str(value))
        except UsageError as error:
            raise _no_server(error, ctx) from None


def _no_server(error: UsageError, ctx: click.Context | None) -> NoServerError:
    kind = UnknownContextError if isinstance(error, config_files.NoContextError) else NoServerError
    return kind(printable(str(error)), ctx)


def _used(ctx: click.Context, context: config_files.ServerContext, *, explicit: bool) -> str:
    ctx.meta[USED] = context.name
    if context.production and not explicit:
        ctx.meta[PRODUCTION] = context.name
    return context_url(context, os.environ, ask_password)
