"""The dashboards, as ``boards.toml`` describes them."""

import tomllib
from typing import Any

from millstream.dashboards.grafana import Dashboard, Panel, Variable
from millstream.paths import packaged


def _board(uid: str, title: str, text: str, variables: list[dict[str, str]], panels: list[dict[str, Any]]) -> Dashboard:
    return Dashboard(uid, title, text, [Variable(**each) for each in variables], [Panel(**each) for each in panels])


BOARDS = tuple(_board(**board) for board in tomllib.loads(packaged("millstream.dashboards", "boards.toml"))["boards"])
