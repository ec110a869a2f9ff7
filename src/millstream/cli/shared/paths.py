"""Files and directories on a command line, and archives, which may lie elsewhere."""

from pathlib import Path
from typing import Any

import click

from millstream.errors import ConfigError
from millstream.paths import archive_place, local_path


class LocalPath(click.ParamType[Path]):
    """A path as it was given, or the one in a ``file:`` URL; any other URL is a mistake (:func:`local_path`)."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path that the word names, or click's error where it is a URL of another kind."""
        try:
            found = local_path(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)
        return found if str(value).startswith("file:") else Path(value)


class ArchivePlace(click.ParamType["Path | str"]):
    """An absolute path, or the URL of a place in an object store (:func:`archive_place`)."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """The place that the word names, or click's error where it names none."""
        try:
            return archive_place(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)
