"""Files and directories on a command line: of this machine."""

from pathlib import Path
from typing import Any

import click

from millstream.errors import ConfigError
from millstream.paths import local_path


class LocalPath(click.ParamType[Path]):
    """A path as it was given, or the one in a ``file:`` URL; any other URL is a mistake (:func:`local_path`)."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """See click."""
        try:
            found = local_path(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)
        return found if str(value).startswith("file:") else Path(value)
