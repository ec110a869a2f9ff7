"""The JSON that Grafana imports, made from a short description of each panel.

Queries use the data source that the dashboard's first variable selects, so one file fits every installation. Panels are
placed two in a row and numbered in order: the same description gives the same bytes. This module does no I/O.

Source: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA_VERSION = 39
"""Schema version of Grafana 11. Later versions upgrade a dashboard on loading."""

_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 2
_CHOICE = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Kind = Literal["timeseries", "stat", "table"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel."""

    title: str  # Heading
    text: str  # Description with normal values, shown at the "i"
    queries: Sequence[tuple[str, str]]  # PromQL and legend of each; ``{{label}}`` in a legend inserts the label's value
    # Unit, as Grafana names it: ``short``, ``s``, ``bytes``, ``ops``, ``percentunit``, ``bool_yes_no``
    unit: str = "short"
    kind: Kind = "timeseries"  # Type of the panel
    alarm: float | None = None  # Value from which it is drawn in red; None for never


@dataclass(frozen=True, slots=True)
class Variable:
    """A selection at the top of a dashboard: the values of one label."""

    name: str  # Name of the variable and of the label
    metric: str  # PromQL of series that have the label; may use preceding variables


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard."""

    uid: str  # Id in Grafana, the target of links; never changes
    title: str  # Title for people
    text: str  # Question that the dashboard answers
    variables: Sequence[Variable]  # Variables in addition to the data source
    panels: Sequence[Panel]  # Panels in display order


def rendered(dashboard: Dashboard) -> str:
    """Return the text of the dashboard's file."""
    return json.dumps(model(dashboard), indent=2) + "\n"


def model(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": ["millstream"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "Millstream",
                "tags": ["millstream"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [_CHOICE, *map(_variable, dashboard.variables)]},
        "panels": [_panel(panel, place) for place, panel in enumerate(dashboard.panels)],
    }


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.name,
        "datasource": _SOURCE,
        "query": {"query": f"label_values({variable.metric}, {variable.name})", "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def _panel(panel: Panel, place: int) -> dict[str, Any]:
    row, column = divmod(place, _COLUMNS)
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    return {
        "id": place + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "targets": [_target(panel, at, *query) for at, query in enumerate(panel.queries)],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                **({"custom": _drawing(panel)} if panel.kind == "timeseries" else {}),
            },
            "overrides": [],
        },
        "options": _options(panel.kind),
    }


def _target(panel: Panel, at: int, query: str, legend: str) -> dict[str, Any]:
    """Return one query of a panel in Grafana's JSON model."""
    return {
        "refId": chr(ord("A") + at),
        "datasource": _SOURCE,
        "expr": query,
        "legendFormat": legend,
        "instant": panel.kind != "timeseries",
        "range": panel.kind == "timeseries",
        **({"format": "table"} if panel.kind == "table" else {}),
    }


def _drawing(panel: Panel) -> dict[str, Any]:
    return {
        "lineWidth": 1,
        "fillOpacity": 8,
        "showPoints": "never",
        "spanNulls": False,  # an unknown value leaves a gap
        "thresholdsStyle": {"mode": "off" if panel.alarm is None else "line"},
    }


def _options(kind: Kind) -> dict[str, Any]:
    if kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value"}
    return {"showHeader": True}
