"""All Grafana dashboards of an environment, as data."""

from typing import Any

from stacks.dashboards import hardware, ray_cluster, serving, training
from stacks.dashboards.model import dashboard

_TITLES = {
    "training": ("Training", training),
    "hardware": ("Hardware", hardware),
    "ray": ("Ray", ray_cluster),
    "serving": ("Serving", serving),
}


def data_source(
    *, uid: str, title: str, endpoint: str, region: str, grafana_version: str, managed: bool
) -> dict[str, Any]:
    """The Managed Prometheus workspace at `endpoint` as a data source; requests to it are signed.

    From version 12 on Grafana has a data source of its own for it, and its plain Prometheus one no longer
    signs. `managed` means that Grafana uses its workspace's role.
    """
    own_kind = int(grafana_version.partition(".")[0]) >= 12
    return {
        "uid": uid,
        "name": title,
        "type": "grafana-amazonprometheus-datasource" if own_kind else "prometheus",
        "access": "proxy",
        "url": endpoint,
        "jsonData": {
            "httpMethod": "POST",
            "sigV4Auth": True,
            "sigV4AuthType": "ec2_iam_role" if managed else "default",
            "sigV4Region": region,
        },
    }


def build(prefix: str, source: dict[str, Any]) -> list[dict[str, Any]]:
    """One dashboard for each subject; uids start with `prefix`."""
    reference = {"type": source["type"], "uid": source["uid"]}
    return [
        dashboard(
            uid=f"{prefix}-{name}",
            title=f"{prefix}: {title}",
            data_source=reference,
            variables=module.VARIABLES,
            rows=module.rows(),
        )
        for name, (title, module) in _TITLES.items()
    ]
