"""The catalogue of dashboard and rules files: the name, purpose and text of each, and their writing."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from millstream.dashboards.boards import BOARDS
from millstream.dashboards.grafana import Dashboard, rendered
from millstream.errors import MillstreamError

_RULES = Path(__file__).with_name("rules")


class NoFileError(MillstreamError):
    """No dashboard file has that name; the message lists the existing ones.

    What to do: list the names (`millstream dashboards ls`) and use one of them.
    """

    exit_code: ClassVar[int] = 4


class FileThereError(MillstreamError):
    """A file of that name exists with other content, or is a symbolic link; nothing was written.

    What to do: keep your file, or use --force to overwrite it. Remove a symbolic link.
    """

    exit_code: ClassVar[int] = 5


@dataclass(frozen=True, slots=True)
class MonitoringFile:
    """One dashboard or rules file."""

    name: str  # Name on the command line
    file: str  # Path below the target folder
    tool: str  # Tool that loads it
    about: str  # Purpose, in one line
    text: Callable[[], str]  # Returns the text


def _grafana(board: Dashboard) -> MonitoringFile:
    name, file = board.uid.removeprefix("millstream-"), f"grafana/{board.uid}.json"
    return MonitoringFile(name, file, "grafana", board.text, partial(rendered, board))


def _prometheus(file: str, about: str) -> MonitoringFile:
    name = file.partition(".")[0]
    return MonitoringFile(name, f"prometheus/{file}", "prometheus", about, partial((_RULES / file).read_text, "utf-8"))


FILES: tuple[MonitoringFile, ...] = (
    *map(_grafana, BOARDS),
    _prometheus("alerts.yml", "Alerts, each with its remedy and a page of the documentation."),
    _prometheus("recording.yml", "Recording rules: figures of a group over all its workers, which the alerts use."),
    _prometheus("scrape.yml", "Configuration of Prometheus to start with: targets and intervals."),
    _prometheus("tier.lua", "Script for redis_exporter: figures of packs and of retention."),
)


def find(name: str) -> MonitoringFile:
    """Return the file with this name."""
    for each in FILES:
        if each.name == name:
            return each
    raise NoFileError(f"there is no file {name!r}; choose one of: {', '.join(each.name for each in FILES)}")


def write_all(folder: Path, *, force: bool) -> list[Path]:
    """Write every file below a folder, which is created if needed; return the paths of the changed files."""
    texts = {folder / each.file: each.text().encode() for each in FILES}
    if links := sorted({str(place) for path in texts for place in (path, path.parent) if place.is_symlink()}):
        raise FileThereError(
            f"{', '.join(links)} is a symbolic link, which may lead out of the folder. Nothing was written. Remove "
            "it, or use another folder."
        )
    there = {path: path.read_bytes() if path.exists() else None for path in texts}
    changed = [path for path, text in texts.items() if there[path] not in (None, text)]
    if changed and not force:
        raise FileThereError(
            f"{', '.join(map(str, changed))}: the file exists and differs, so nothing was written; compare it with "
            "the output of `millstream dashboards show`, then use --force or another folder"
        )
    wanted = [path for path, text in texts.items() if there[path] != text]
    for path in wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=_no_link) as file:
            file.write(texts[path])
    return wanted


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)  # fails if the path has become a link meanwhile
