"""Grafana dashboards as data: rows of panels, each panel a few checked queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stacks.dashboards.emitted import EMITTED
from stacks.dashboards.promql import checked

_COLUMNS = 24
_HEIGHT = 8
_SCHEMA_VERSION = 39


@dataclass(frozen=True)
class Query:
    """One line of a panel. Raises ValueError when it asks for a metric that nobody emits."""

    legend: str
    expression: str

    def __post_init__(self) -> None:
        checked(self.expression, EMITTED)


@dataclass(frozen=True)
class Panel:
    """A time series; `unit` is Grafana's name of it, a share is `percentunit`."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""
    maximum: float | None = None


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice at the top: the values that `label` has in `metric`."""

    name: str
    metric: str
    label: str

    def __post_init__(self) -> None:
        checked(self.metric, EMITTED)


def dashboard(
    *, uid: str, title: str, data_source: dict[str, str], variables: Sequence[Variable], rows: Sequence[Row]
) -> dict[str, Any]:
    """What Grafana's HTTP API takes; `data_source` is {type, uid}. The same input gives the same text."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
            }
        )
        width = _COLUMNS // min(3, len(row.panels))
        per_line = _COLUMNS // width
        for index, panel in enumerate(row.panels):
            place = {
                "h": _HEIGHT,
                "w": width,
                "x": index % per_line * width,
                "y": top + 1 + index // per_line * _HEIGHT,
            }
            panels.append(_panel(panel, len(panels) + 1, place, data_source))
        top += 1 + -(-len(row.panels) // per_line) * _HEIGHT
    return {
        "uid": uid,
        "title": title,
        "tags": ["skypod"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_variable(variable, data_source) for variable in variables]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int], data_source: dict[str, str]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": {"spanNulls": True}}
    if panel.maximum is not None:
        defaults |= {"min": 0, "max": panel.maximum}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "datasource": data_source,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query.expression, "legendFormat": query.legend}
            for index, query in enumerate(panel.queries)
        ],
    }


def _variable(variable: Variable, data_source: dict[str, str]) -> dict[str, Any]:
    values = f"label_values({variable.metric}, {variable.label})"
    return {
        "type": "query",
        "name": variable.name,
        "datasource": data_source,
        "query": {"query": values, "refId": variable.name},
        "definition": values,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }
