"""Settings of the parts that an environment has only when they are asked for."""

from typing import Annotated, Literal

from pydantic import Field

from stacks.ranges import between
from training.toml_settings import Section


class Studio(Section):
    """SageMaker Studio as a view of the cluster and its tasks; off unless `enabled`. One profile per user."""

    enabled: bool = False
    users: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")], ...],
        Field(min_length=1, max_length=50),
    ] = ("researcher",)


class Team(Section):
    """What one team is guaranteed of the cluster. Its pods run in the namespace `hyperpod-ns-<name>`.

    A Ray cluster holds its whole size, head included, for as long as it exists. `borrow_percent` is how much
    more than its own share it may take of what others leave idle; `fair_share_weight` decides between teams.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")]
    head_nodes: Annotated[int, between(0, 64)] = 1
    gpu_nodes: Annotated[int, between(0, 64)]
    serving_nodes: Annotated[int, between(0, 64)] = 0
    fair_share_weight: Annotated[int, between(0, 100)] = 50
    borrow_percent: Annotated[int, between(0, 500)] = 0

    @property
    def namespace(self) -> str:
        return f"hyperpod-ns-{self.name}"

    def nodes(self, group: str) -> int:
        """How many nodes of an instance group the team is guaranteed."""
        return getattr(self, f"{group}_nodes")


class Governance(Section):
    """Task governance (Kueue) with a compute quota per team; off unless `enabled`."""

    enabled: bool = False
    teams: tuple[Team, ...] = ()


class Domain(Section):
    """Signed links to Ray dashboards and jobs under a domain of yours; off without this section.

    `name` lies in the public Route 53 zone `hosted_zone_id`, and `certificate_arn` covers it and its
    subdomains. With `scheme = "internal"` the links work for whoever reaches the VPC.
    """

    name: Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}$")]
    hosted_zone_id: Annotated[str, Field(pattern=r"^Z[A-Z0-9]{5,31}$")]
    certificate_arn: Annotated[
        str, Field(pattern=r"^arn:aws:acm:[a-z0-9-]+:\d{12}:certificate/[0-9a-f-]{36}$")
    ]
    scheme: Literal["internal", "internet-facing"] = "internal"
