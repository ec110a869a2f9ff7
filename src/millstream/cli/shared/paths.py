"""Paths of files, directories and archives on a command line."""

from pathlib import Path
from typing import Any

import click

from millstream.errors import ConfigError
from millstream.paths import archive_place, local_path


class LocalPath(click.ParamType[Path]):
    """A path as given, or the path of a ``file:`` URL. Any other URL is an error (:func:`local_path`)."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, or raise click's error for another kind of URL."""
        try:
            found = local_path(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)
        return found if str(value).startswith("file:") else Path(value)


class ArchivePlace(click.ParamType["Path | str"]):
    """An absolute path, or a URL in an object store (:func:`archive_place`)."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Return the location, or raise click's error if it is invalid."""
        try:
            return archive_place(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)
