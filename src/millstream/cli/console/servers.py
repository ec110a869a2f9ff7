"""The servers on a command line: URLs without passwords, context names, or files of URLs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from millstream.cli.shared.confirm import confirm
from millstream.cli.shared.secret_files import check_secret
from millstream.cli.shared.servers import GIVEN, USED, context_named, usual_url, without_secret
from millstream.client.recorded.report import open_report
from millstream.client.url import REPORT, check_shared
from millstream.errors import UsageError
from millstream.printable import has_password, without_password


@dataclass(frozen=True, slots=True)
class GivenServer:
    """A server that the command line names."""

    url: str = field(repr=False)  # Includes the password, if there is one
    context: str = ""  # The name of its context; empty for none


def servers(words: tuple[str, ...], reports: tuple[str, ...] = ()) -> list[str]:
    """Return the URLs of :func:`given_servers`."""
    return [one.url for one in given_servers(words, reports)]


def given_servers(words: tuple[str, ...], reports: tuple[str, ...] = ()) -> list[GivenServer]:
    """Return the named servers, checked. Without names, return the server of the context or the environment."""
    found = [one for word in words for one in _named_by(word)]
    found += [GivenServer(f"{REPORT}{name}") for name in reports]
    for one in found:
        if one.url.startswith(REPORT):  # an unreadable report is an error at once
            open_report(one.url)
    meta = click.get_current_context().meta
    if found and meta.get(GIVEN):
        raise UsageError("--context and a URL both name a server: leave --context out, and name it as context:NAME")
    found = found or [GivenServer(usual_url(), meta.get(USED, ""))]
    for one in found:
        check_shared(one.url)
    return found


def _named_by(word: str) -> list[GivenServer]:
    if word.startswith("@"):
        return [GivenServer(url) for url in _from_file(word[1:])]
    if word.startswith("context:"):
        name = word.partition(":")[2]
        return [GivenServer(context_named(name), name)]
    return [GivenServer(without_secret(word))]


def check_changes(urls: Sequence[str]) -> None:
    """Refuse changes on a report, and require a confirmation for a production server."""
    if any(url.startswith(REPORT) for url in urls):
        raise UsageError("A report cannot be changed. Omit --allow-changes, or give a server.")
    confirm(f"Show {', '.join(map(without_password, urls))} with changes allowed?", "allow them", yes=True)


def _from_file(name: str) -> list[str]:
    try:
        urls = _urls(sys.stdin.read()) if name == "-" else _urls_of(Path(name))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"@{name} cannot be read: {error}") from None
    if not urls:
        raise UsageError(
            f"@{name} has no URL in it: put one on each line, such as redis://user:password@127.0.0.1:6379/0"
        )
    return urls


def _urls_of(path: Path) -> list[str]:
    """Return the URLs in a file. If one has a password, the file must be private."""
    with path.open("rb") as file:
        urls = _urls(file.read().decode())
        if any(map(has_password, urls)):
            check_secret(path, file)
    return urls


def _urls(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
