"""What an environment is made of: the frozen, validated settings that every stack takes.

`cdk_app.settings.load` reads them from TOML; units are in the names, ranges in the fields.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from stacks.names import PARTS
from stacks.optional import Domain, Governance, Studio
from stacks.ranges import between, block, distinct
from stacks.workloads import Ray, Serving
from training.toml_settings import Section

# Lustre SSD PERSISTENT_2 comes in 1.2 TiB, then in steps of 2.4 TiB.
LUSTRE_FIRST_STEP_GIB = 1200
LUSTRE_STEP_GIB = 2400
# What a VPC may be made of and nobody else routes (RFC 1918).
_PRIVATE = tuple(IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
# On nodes of these sizes alone the observability add-on's collector finds no room: it wants 4xlarge.
_SMALL = re.compile(r"\.(medium|large|(2|3)?xlarge)$")
ADDONS = (
    "vpc-cni",
    "kube-proxy",
    "coredns",
    "eks-pod-identity-agent",
    "aws-fsx-csi-driver",
    "cert-manager",
    "external-dns",
    "amazon-sagemaker-spaces",
)
"""EKS add-ons whose version the settings may pin."""

# Their owners would meet ours there: Kubernetes itself, and the namespaces of the charts.
_TAKEN_NAMESPACES = (
    "default",
    "kuberay-operator",
    "hyperpod-observability",
    "aws-hyperpod",
    "hyperpod-ray",
    "jupyter-k8s-system",
    "cert-manager",
    "external-dns",
)


class Network(Section):
    """One VPC. HyperPod and Lustre share the first zone: neither EFA nor Lustre should cross zones.

    `interface_endpoints` keeps calls to AWS's own services inside the VPC; the internet stays reachable
    through NAT, because charts and models come from there. `flow_logs` records who talked to whom.
    """

    cidr: str = "10.40.0.0/16"
    zones: Annotated[tuple[str, ...], Field(min_length=2, max_length=3)]
    control_plane_prefix_bits: Annotated[int, between(22, 28)] = 24
    node_prefix_bits: Annotated[int, between(18, 22)] = 18
    interface_endpoints: bool = False
    flow_logs: bool = False

    @field_validator("zones")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> Sequence[str]:
        return distinct(value)

    @model_validator(mode="after")
    def _room_for_all(self) -> Self:
        vpc = IPv4Network(self.cidr)
        least = vpc.prefixlen + 2
        if self.node_prefix_bits < least:
            raise ValueError(
                f"node_prefix_bits = {self.node_prefix_bits} leaves no room for the other subnets in "
                f"{self.cidr}; it must be from {least} to 22"
            )
        # Each zone has a public and a control-plane subnet; the nodes take the last block of the VPC.
        room = vpc.num_addresses - 2 ** (32 - self.node_prefix_bits)
        fits = [bits for bits in range(22, 29) if 2 * len(self.zones) * 2 ** (32 - bits) <= room]
        if self.control_plane_prefix_bits not in fits:
            raise ValueError(
                f"control_plane_prefix_bits = {self.control_plane_prefix_bits}: {2 * len(self.zones)} such "
                f"subnets and the nodes' /{self.node_prefix_bits} do not fit into {self.cidr}; "
                f"it must be from {fits[0]} to 28"
            )
        return self

    @field_validator("cidr")
    @classmethod
    def _private_block(cls, value: str) -> str:
        network = block(value)
        if not 16 <= network.prefixlen <= 20 or not any(network.subnet_of(each) for each in _PRIVATE):
            raise ValueError(
                "must be a private block (10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16) from /16 to /20"
            )
        return value


class Storage(Section):
    """FSx for Lustre and the artifacts bucket. `keep_data` retains both when the stacks are destroyed."""

    lustre_capacity_gib: Annotated[int, between(1200, 100_800)] = 1200
    lustre_throughput_mib_s_per_tib: Literal[125, 250, 500, 1000] = 250
    scratch_expiry_days: Annotated[int, between(1, 365)] = 30
    keep_data: bool = False

    @field_validator("lustre_capacity_gib")
    @classmethod
    def _lustre_step(cls, value: int) -> int:
        if value != LUSTRE_FIRST_STEP_GIB and value % LUSTRE_STEP_GIB:
            raise ValueError("must be 1200 or a multiple of 2400 GiB")
        return value


class Eks(Section):
    """The control plane. HyperPod supports Kubernetes 1.30 to 1.35.

    Without `public_access` the API answers inside the VPC only: our own tools move there, and people need a
    way in. `addon_versions` pins add-ons by name; the others get EKS's default for the Kubernetes version.
    """

    version: Literal["1.33", "1.34", "1.35"] = "1.35"
    public_access: bool = True
    public_access_cidrs: Annotated[tuple[str, ...], Field(min_length=1, max_length=40)] = ("0.0.0.0/0",)
    addon_versions: dict[str, Annotated[str, Field(pattern=r"^v\d+\.\d+\.\d+-eksbuild\.\d+$")]] = Field(
        default_factory=dict
    )

    @field_validator("addon_versions")
    @classmethod
    def _known_addons(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in ADDONS:
                raise ValueError(f"{name!r} is none of our add-ons, which are {', '.join(ADDONS)}")
        return value

    @field_validator("public_access_cidrs")
    @classmethod
    def _blocks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if any(block(text).subnet_of(private) for private in _PRIVATE):
                raise ValueError(f"{text} is private, and EKS takes public blocks only: it is behind NAT")
            if "/" not in text:
                raise ValueError(f"{text} has no prefix: write {text}/32 for that one address")
        return value


class InstanceGroup(Section):
    """One HyperPod instance group; `gpus` is the number that each node of the type has."""

    instance_type: Annotated[str, Field(pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9]+$")]
    count: Annotated[int, between(1, 64)]
    gpus: Annotated[int, between(0, 8)] = 0
    extra_volume_gib: Annotated[int, between(100, 16_384)] = 500


class HyperPod(Section):
    """The cluster's node groups, and how long the deploy waits for nodes before it fails loudly.

    `serving` gives the replicas nodes of their own, so that they run beside a training; without it they use
    those of `gpu`. `deep_health_checks` test new GPU nodes under load before any pod gets there, for up to
    hours; they are off because whether AWS runs them on g7e is not documented.
    """

    head: InstanceGroup
    gpu: InstanceGroup
    serving: InstanceGroup | None = None
    deep_health_checks: tuple[Literal["InstanceStress", "InstanceConnectivity"], ...] = ()
    wait_for_nodes_s: Annotated[int, between(60, 3_500)] = 3_300

    @property
    def groups(self) -> dict[str, InstanceGroup]:
        """Every instance group by its name in HyperPod, which its nodes carry as the label `skypod/group`."""
        groups = {"head": self.head, "gpu": self.gpu, "serving": self.serving}
        return {name: group for name, group in groups.items() if group is not None}

    @property
    def replica_group(self) -> str:
        """The group on whose nodes serving replicas run."""
        return "serving" if self.serving else "gpu"

    @field_validator("deep_health_checks")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> Sequence[str]:
        return distinct(value)

    @model_validator(mode="after")
    def _roles(self) -> Self:
        if self.head.gpus:
            raise ValueError(f"head.gpus = {self.head.gpus}: must be 0 GPUs, the head only drives the run")
        if not self.gpu.gpus:
            raise ValueError("gpu.gpus = 0: must be at least 1 GPU per node")
        if self.serving and not self.serving.gpus:
            raise ValueError("serving.gpus = 0: must be at least 1 GPU per node")
        types = [group.instance_type for group in self.groups.values()]
        if all(_SMALL.search(each) for each in types):
            raise ValueError(
                f"only {', '.join(types)}: the metrics collector needs a node of 4xlarge or more"
            )
        return self


class Charts(Section):
    """Helm charts, each pinned; the HyperPod one exists only in a git repository."""

    hyperpod_repository: str = "https://github.com/aws/sagemaker-hyperpod-cli.git"
    hyperpod_revision: Annotated[str, Field(pattern=r"^(v\d+\.\d+\.\d+|[0-9a-f]{40})$")] = "v3.10.0"
    kuberay_repository: str = "https://ray-project.github.io/kuberay-helm/"
    kuberay_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = "1.7.1"
    load_balancer_repository: str = "https://aws.github.io/eks-charts"
    load_balancer_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = "1.13.2"


class Access(Section):
    """IAM principals that may assume the administrator's and the researcher's role."""

    admin_principal_arns: tuple[Annotated[str, Field(pattern=r"^arn:aws:(iam|sts)::\d{12}:.+$")], ...] = ()
    researcher_principal_arns: tuple[
        Annotated[str, Field(pattern=r"^arn:aws:(iam|sts)::\d{12}:.+$")], ...
    ] = ()


class Observability(Section):
    """Metrics, alerts and dashboards.

    `grafana` makes a Managed Grafana workspace, which needs an IAM Identity Center organization instance.
    Without it dashboards go to `grafana_url`, when one is named, with the service account token that is the
    text of the secret `grafana_token_secret_arn`. `grafana_version` is the version of whichever it is.
    """

    grafana: bool = True
    grafana_version: Annotated[str, Field(pattern=r"^\d+\.\d+$")] = "12.4"
    grafana_url: Annotated[str, Field(pattern=r"^(https://[^\s/]+(/[^\s]*[^\s/])?)?$")] = ""
    grafana_token_secret_arn: Annotated[
        str, Field(pattern=r"^(arn:aws:secretsmanager:[a-z0-9-]+:\d{12}:secret:\S+)?$")
    ] = ""
    alert_email: Annotated[str, Field(pattern=r"^([^@\s]+@[^@\s]+)?$")] = ""
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 180, 365] = 30
    stalled_after_minutes: Annotated[int, between(5, 1_440)] = 45

    @model_validator(mode="after")
    def _one_grafana(self) -> Self:
        if bool(self.grafana_url) != bool(self.grafana_token_secret_arn):
            raise ValueError("grafana_url and grafana_token_secret_arn go together: set both or neither")
        if self.grafana and self.grafana_url:
            raise ValueError("dashboards go to one Grafana: set grafana = false to use grafana_url")
        return self


class Guardrails(Section):
    """The monthly budget, the shares of it at which a notification goes out, and brakes on mistakes.

    `budget_covers = "environment"` counts only what carries this environment's tag, and counts nothing until
    `skypod:environment` has been activated as a cost allocation tag in the paying account.
    `termination_protection` keeps every stack from being deleted until it is switched off again.
    """

    budget_covers: Literal["account", "environment"] = "account"
    idle_after_hours: Annotated[int, between(1, 24)] = 2
    termination_protection: bool = False
    monthly_budget_usd: Annotated[int, between(1, 10_000_000)] = 5_000
    alert_at_percent: Annotated[
        tuple[Annotated[int, between(1, 1_000)], ...], Field(min_length=1, max_length=5)
    ] = (50, 80, 100)

    @field_validator("alert_at_percent")
    @classmethod
    def _each_once(cls, value: tuple[int, ...]) -> Sequence[int]:
        return distinct(value)


class Environment(Section):
    """One deployable environment.

    `account` may stay out: synth then uses the caller's account, or 123456789012 without credentials.
    """

    # ECR takes no hyphen at the end of a name or beside another.
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", min_length=2, max_length=16)]
    region: Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")] = "us-west-2"
    account: Annotated[str, Field(pattern=r"^\d{12}$")] | None = None
    namespace: Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")] = "skypod"
    network: Network
    storage: Storage = Storage()
    eks: Eks = Eks()
    hyperpod: HyperPod
    ray: Ray
    charts: Charts = Charts()
    access: Access = Access()
    observability: Observability = Observability()
    guardrails: Guardrails = Guardrails()
    serving: Serving = Serving()
    studio: Studio = Studio()
    governance: Governance = Governance()
    domain: Domain | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The stacks of this environment, in an order in which each one may be deployed."""
        off = {
            part
            for part, on in (
                ("studio", self.studio.enabled),
                ("governance", self.governance.enabled),
                ("endpoint", self.domain is not None),
                ("inference", self.serving.endpoint is not None),
            )
            if not on
        }
        return tuple(part for part in PARTS if part not in off)

    @model_validator(mode="after")
    def _governed(self) -> Self:
        teams = self.governance.teams
        if not self.governance.enabled:
            return self
        if self.namespace not in [team.namespace for team in teams]:
            raise ValueError(
                f"namespace = {self.namespace!r}: with governance it must be hyperpod-ns-<team> of one of "
                f"governance.teams ({', '.join(team.name for team in teams) or 'there are none'})"
            )
        for group in ("head", "gpu", "serving"):
            given = sum(team.nodes(group) for team in teams)
            count = self.hyperpod.groups[group].count if group in self.hyperpod.groups else 0
            if given > count:
                raise ValueError(
                    f"governance.teams are guaranteed {given} {group} nodes, more than "
                    f"hyperpod.{group}.count = {count}"
                )
        if self.eks.version < "1.34":
            raise ValueError(f"eks.version = {self.eks.version!r}: task governance needs 1.34 or newer")
        return self

    @model_validator(mode="after")
    def _certificate_in_region(self) -> Self:
        if self.domain and self.domain.certificate_arn.split(":")[3] != self.region:
            raise ValueError(
                f"domain.certificate_arn is in another region than {self.region!r}, where load balancers "
                "cannot use it; request one there"
            )
        return self

    @model_validator(mode="after")
    def _image_in_region(self) -> Self:
        endpoint = self.serving.endpoint
        if endpoint and endpoint.repository_arn.split(":")[3] != self.region:
            raise ValueError(
                f"serving.endpoint.image is in another region than {self.region!r}, from which SageMaker "
                "pulls none; name the repository there"
            )
        return self

    @field_validator("region")
    @classmethod
    def _commercial(cls, value: str) -> str:
        if value.startswith(("cn-", "us-gov-", "us-iso", "eu-isoe-")):
            raise ValueError(
                "is in another partition, whose ARNs our policies do not name; choose another region"
            )
        return value

    @field_validator("namespace")
    @classmethod
    def _own_namespace(cls, value: str) -> str:
        if value.startswith("kube-") or value in _TAKEN_NAMESPACES:
            raise ValueError("belongs to Kubernetes or to a chart; choose a name of its own")
        return value

    @model_validator(mode="after")
    def _zones_in_region(self) -> Self:
        for zone in self.network.zones:
            if not re.fullmatch(f"{re.escape(self.region)}[a-z]", zone):
                raise ValueError(
                    f"network.zones: {zone!r} is not an availability zone of region {self.region!r}, "
                    f"which are named like '{self.region}a'"
                )
        return self

    @model_validator(mode="after")
    def _replicas_fit(self) -> Self:
        name, serving = self.hyperpod.replica_group, self.serving
        group = self.hyperpod.groups[name]
        room = group.count * (group.gpus // serving.gpus_per_replica)
        if serving.max_replicas > room:
            raise ValueError(
                f"serving.max_replicas = {serving.max_replicas} with "
                f"gpus_per_replica = {serving.gpus_per_replica}: "
                f"{group.count} nodes with {group.gpus} GPUs have room for {room}; "
                f"lower them, or raise hyperpod.{name}"
            )
        if self.governance.enabled and serving.scales:
            raise ValueError(
                f"serving.max_replicas = {serving.max_replicas} is above min_replicas: task governance "
                "(Kueue) admits no Ray cluster that changes its size; make them equal"
            )
        return self
