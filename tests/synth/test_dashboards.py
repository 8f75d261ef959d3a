"""Dashboards and alerts ask only for metrics that somebody emits, and show all that a run emits."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from stacks import dashboards
from stacks.dashboards import emitted, promql, training
from stacks.dashboards.model import Query, Variable
from tests.synth.conftest import Synthesized
from training.metrics import METRICS

SOURCE = dashboards.data_source(
    uid="skypod-paper",
    title="skypod-paper",
    endpoint="https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-1",
    region="us-west-2",
    grafana_version="12.4",
    managed=True,
)
BUILT = dashboards.build("skypod-paper", SOURCE)


def _expressions(dashboard: dict) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("up", {"up"}),
        ('sum by (le) (rate(x_bucket{a="b}c",d=~"e|f"}[5m]))', {"x_bucket"}),
        ("a / on (x) group_left(y) b", {"a", "b"}),
        ("avg(avg_over_time(U[2h])) < 5 and changes(s[45m] offset 5m) == bool 0", {"U", "s"}),
        ('histogram_quantile(0.95, sum(h:x{run=~"$run"}) without (le))', {"h:x"}),
    ],
)
def test_the_metrics_of_an_expression_are_found(expression: str, names: set[str]):
    assert promql.names(expression) == names


def test_a_panel_that_asks_for_a_metric_that_nobody_emits_is_refused():
    with pytest.raises(ValueError, match="nobody emits ray_skypod_reward, which"):
        Query("reward", "max by (run) (ray_skypod_reward)")
    with pytest.raises(ValueError, match="nobody emits up"):
        Variable("job", "up", "job")


def test_a_metric_that_the_trainer_drops_fails_the_build(monkeypatch):
    monkeypatch.delitem(training.METRICS, "reward_mean")
    with pytest.raises(ValueError, match="reward_mean, which no run emits"):
        training.rows()


def test_the_training_dashboard_shows_every_metric_of_a_run():
    (shown,) = [d for d in BUILT if d["uid"].endswith("-training")]
    asked = set().union(*map(promql.names, _expressions(shown)))
    assert asked == {metric.prometheus for metric in METRICS.values()}


def test_rays_and_vllms_names_are_those_of_rays_own_dashboards():
    panels = Path(find_spec("ray").origin).parent / "dashboard" / "modules" / "metrics" / "dashboards"
    text = "".join(path.read_text() for path in panels.glob("*_panels.py"))
    names = [name for name, found in emitted.FOREIGN.items() if found.source in (emitted.RAY, emitted.VLLM)]
    assert len(names) > 15
    for name in names:
        assert name.removesuffix("_bucket") in text, name


def test_every_metric_of_others_is_used_and_has_a_source():
    asked = set().union(*(promql.names(e) for dashboard in BUILT for e in _expressions(dashboard)))
    assert emitted.FOREIGN.keys() <= asked
    assert all(found.source and found.unit for found in emitted.FOREIGN.values())


def test_dashboards_are_what_grafana_takes():
    assert len({dashboard["uid"] for dashboard in BUILT}) == len(BUILT) == 4
    longest = dashboards.build("skypod-" + "x" * 16, SOURCE)
    assert all(len(dashboard["uid"]) <= 40 for dashboard in longest)
    for dashboard in BUILT:
        cells = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            own = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not own & cells, panel["title"]
            assert place["x"] + place["w"] <= 24
            cells |= own
        numbers = [panel["id"] for panel in dashboard["panels"]]
        assert len(numbers) == len(set(numbers))
    assert json.dumps(BUILT) == json.dumps(dashboards.build("skypod-paper", SOURCE))


@pytest.mark.parametrize(
    ("version", "kind"), [("10.4", "prometheus"), ("12.4", "grafana-amazonprometheus-datasource")]
)
def test_the_kind_of_data_source_follows_grafanas_version(version: str, kind: str):
    source = dashboards.data_source(
        uid="u", title="t", endpoint="e", region="r", grafana_version=version, managed=False
    )
    assert source["type"] == kind
    assert source["jsonData"]["sigV4AuthType"] == "default"
    assert {d["panels"][1]["datasource"]["type"] for d in dashboards.build("p", source)} == {kind}


def test_the_push_fits_into_an_invocation(paper: Synthesized):
    """Lambda takes 256 KB of event, and an update carries the old properties beside the new ones."""
    pushed = paper.one("Custom::GrafanaDashboards")["Properties"]
    assert json.loads(pushed["Dashboards"]) == BUILT
    assert 2 * len(json.dumps(pushed)) < 200_000
