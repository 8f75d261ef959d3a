"""What an environment is made of: the frozen, validated settings that every stack takes.

`cdk_app.settings.load` reads them from TOML; units are in the names, ranges in the fields.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from training.toml_settings import Section

# Lustre SSD PERSISTENT_2 comes in 1.2 TiB, then in steps of 2.4 TiB.
LUSTRE_FIRST_STEP_GIB = 1200
LUSTRE_STEP_GIB = 2400
# What a VPC may be made of and nobody else routes (RFC 1918).
_PRIVATE = tuple(IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
# Their owners would meet ours there: Kubernetes itself, and the namespaces of the charts.
_TAKEN_NAMESPACES = ("default", "kuberay-operator", "hyperpod-observability", "aws-hyperpod")


def _between(low: int, high: int) -> AfterValidator:
    """A range whose error names both ends."""

    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}")
        return value

    return AfterValidator(check)


def _distinct[T](values: Sequence[T]) -> Sequence[T]:
    """A list in which AWS refuses to find anything twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is named twice; name each once")
    return values


class Network(Section):
    """One VPC. HyperPod and Lustre share the first zone: neither EFA nor Lustre should cross zones."""

    cidr: str = "10.40.0.0/16"
    zones: Annotated[tuple[str, ...], Field(min_length=2, max_length=3)]
    control_plane_prefix_bits: Annotated[int, _between(22, 28)] = 24
    node_prefix_bits: Annotated[int, _between(18, 22)] = 18

    @field_validator("zones")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> Sequence[str]:
        return _distinct(value)

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
        network = IPv4Network(value)
        if not 16 <= network.prefixlen <= 20 or not any(network.subnet_of(block) for block in _PRIVATE):
            raise ValueError(
                "must be a private block (10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16) from /16 to /20"
            )
        return value


class Storage(Section):
    """FSx for Lustre and the artifacts bucket. `keep_data` retains both when the stacks are destroyed."""

    lustre_capacity_gib: Annotated[int, _between(1200, 100_800)] = 1200
    lustre_throughput_mib_s_per_tib: Literal[125, 250, 500, 1000] = 250
    scratch_expiry_days: Annotated[int, _between(1, 365)] = 30
    keep_data: bool = False

    @field_validator("lustre_capacity_gib")
    @classmethod
    def _lustre_step(cls, value: int) -> int:
        if value != LUSTRE_FIRST_STEP_GIB and value % LUSTRE_STEP_GIB:
            raise ValueError("must be 1200 or a multiple of 2400 GiB")
        return value


class Eks(Section):
    """The control plane. HyperPod supports Kubernetes 1.30 to 1.35."""

    version: Literal["1.33", "1.34", "1.35"] = "1.35"
    public_access_cidrs: Annotated[tuple[str, ...], Field(min_length=1, max_length=40)] = ("0.0.0.0/0",)

    @field_validator("public_access_cidrs")
    @classmethod
    def _blocks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for block in value:
            if any(IPv4Network(block).subnet_of(private) for private in _PRIVATE):
                raise ValueError(f"{block} is private, and EKS takes public blocks only: it is behind NAT")
        return value


class InstanceGroup(Section):
    """One HyperPod instance group; `gpus` is the number that each node of the type has."""

    instance_type: Annotated[str, Field(pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9]+$")]
    count: Annotated[int, _between(1, 64)]
    gpus: Annotated[int, _between(0, 8)] = 0
    extra_volume_gib: Annotated[int, _between(100, 16_384)] = 500


class HyperPod(Section):
    """The cluster's node groups, and how long the deploy waits for nodes before it fails loudly."""

    head: InstanceGroup
    gpu: InstanceGroup
    wait_for_nodes_s: Annotated[int, _between(60, 3_500)] = 3_300

    @model_validator(mode="after")
    def _roles(self) -> Self:
        if self.head.gpus:
            raise ValueError("hyperpod.head must have 0 GPUs: the head only drives the run")
        if not self.gpu.gpus:
            raise ValueError("hyperpod.gpu must have at least 1 GPU per node")
        return self


class PodResources(Section):
    """What one Ray pod asks for; it must stay below the node's allocatable, not its nameplate."""

    cpus: Annotated[int, _between(1, 192)]
    memory_gib: Annotated[int, _between(1, 2_048)]
    shared_memory_gib: Annotated[int, _between(1, 1_024)] = 16

    @model_validator(mode="after")
    def _shared_is_part(self) -> Self:
        if self.shared_memory_gib >= self.memory_gib:
            raise ValueError(
                f"shared_memory_gib = {self.shared_memory_gib} counts against memory_gib = {self.memory_gib} "
                "and must be less"
            )
        return self


class Ray(Section):
    """The Ray version inside the train image, and the sizes of the training pods."""

    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = "2.57.0"
    head: PodResources
    worker: PodResources


class Charts(Section):
    """Helm charts, each pinned; the HyperPod one exists only in a git repository."""

    hyperpod_repository: str = "https://github.com/aws/sagemaker-hyperpod-cli.git"
    hyperpod_revision: Annotated[str, Field(pattern=r"^(v\d+\.\d+\.\d+|[0-9a-f]{40})$")] = "v3.10.0"
    kuberay_repository: str = "https://ray-project.github.io/kuberay-helm/"
    kuberay_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = "1.7.1"


class Access(Section):
    """IAM principals that may assume the administrator's and the researcher's role."""

    admin_principal_arns: tuple[Annotated[str, Field(pattern=r"^arn:aws:(iam|sts)::\d{12}:.+$")], ...] = ()
    researcher_principal_arns: tuple[
        Annotated[str, Field(pattern=r"^arn:aws:(iam|sts)::\d{12}:.+$")], ...
    ] = ()


class Observability(Section):
    """Metrics and alerts. Grafana needs an IAM Identity Center organization instance in the account."""

    grafana: bool = True
    grafana_version: Annotated[str, Field(pattern=r"^\d+\.\d+$")] = "12.4"
    alert_email: Annotated[str, Field(pattern=r"^([^@\s]+@[^@\s]+)?$")] = ""
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 180, 365] = 30
    stalled_after_minutes: Annotated[int, _between(5, 1_440)] = 45


class Guardrails(Section):
    """The monthly budget and the shares of it at which a notification goes out."""

    monthly_budget_usd: Annotated[int, _between(1, 10_000_000)] = 5_000
    alert_at_percent: Annotated[
        tuple[Annotated[int, _between(1, 1_000)], ...], Field(min_length=1, max_length=5)
    ] = (50, 80, 100)

    @field_validator("alert_at_percent")
    @classmethod
    def _each_once(cls, value: tuple[int, ...]) -> Sequence[int]:
        return _distinct(value)


class Serving(Section):
    """The vLLM replicas behind the RayService: the serve image's Ray version and the pods' sizes."""

    ray_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = "2.60.0"
    head: PodResources = PodResources(cpus=8, memory_gib=32, shared_memory_gib=8)
    replica: PodResources = PodResources(cpus=16, memory_gib=128, shared_memory_gib=16)

    gpus_per_replica: Annotated[int, _between(1, 8)] = 1
    replicas: Annotated[int, _between(1, 8)] = 1
    max_adapters: Annotated[int, _between(1, 64)] = 4


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
        group, serving = self.hyperpod.gpu, self.serving
        room = group.count * (group.gpus // serving.gpus_per_replica)
        if serving.replicas > room:
            raise ValueError(
                f"serving.replicas = {serving.replicas} with gpus_per_replica = {serving.gpus_per_replica}: "
                f"{group.count} nodes with {group.gpus} GPUs have room for {room}; "
                "lower them, or raise hyperpod.gpu"
            )
        return self
