"""Settings of the parts that an environment has only when they are asked for."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stacks.ranges import between, in_order
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


class InferenceEndpoint(Section):
    """A SageMaker endpoint that serves base and adapters without the cluster; off without this section.

    `image` is vLLM's for SageMaker, by digest or tag, and `base_uri` the folder of the base's weights, best
    in a bucket that outlives the environment. A copy of the base takes all `gpus` of an instance and
    `memory_gib`, which has to be below the instance's own; more copies are started when those there are work
    on more than `requests_per_copy` at once. `model_id` is `skypod promote`'s `--model-id`.
    """

    image: Annotated[
        str,
        Field(
            pattern=r"^\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com/[a-z0-9][a-z0-9._/-]*"
            r"(:[A-Za-z0-9][A-Za-z0-9._-]{0,127}|@sha256:[0-9a-f]{64})$"
        ),
    ]
    base_uri: Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)+$")]
    instance_type: Annotated[str, Field(pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9]+$")]
    gpus: Annotated[int, between(1, 8)]
    memory_gib: Annotated[int, between(8, 2_048)]
    min_copies: Annotated[int, between(1, 16)] = 1
    max_copies: Annotated[int, between(1, 16)] = 1
    requests_per_copy: Annotated[int, between(1, 1_000)] = 16
    model_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "maze"
    max_lora_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] = 64
    max_model_len_tokens: Annotated[int, between(1_024, 262_144)] = 24_576

    @property
    def repository_arn(self) -> str:
        """The repository that the image is pulled from."""
        registry, _, rest = self.image.partition("/")
        account, _, _, region, *_ = registry.split(".")
        name = rest.partition("@")[0].partition(":")[0]
        return f"arn:aws:ecr:{region}:{account}:repository/{name}"

    @model_validator(mode="after")
    def _copies_in_order(self) -> Self:
        in_order("copies", self.min_copies, self.max_copies)
        return self
