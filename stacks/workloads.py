"""Settings of what runs on the cluster: Ray's pods and the served model."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from stacks.optional import InferenceEndpoint
from stacks.ranges import between, in_order
from training.toml_settings import Section


class PodResources(Section):
    """What one Ray pod asks for; it must stay below the node's allocatable, not its nameplate."""

    cpus: Annotated[int, between(1, 192)]
    memory_gib: Annotated[int, between(1, 2_048)]
    shared_memory_gib: Annotated[int, between(1, 1_024)] = 16

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


class Gateway(Section):
    """The gateway before the RayService: the model that clients ask for. `mixes_safely` where the engine may
    have base and adapter requests in one batch: then there are two gateways, and no turns."""

    public_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "maze"
    mixes_safely: bool = False


class Serving(Section):
    """The vLLM replicas behind the RayService: the serve image's Ray version and the pods' sizes.

    More replicas than `min_replicas` are started when those there are work on more than
    `requests_per_replica` at once. `gateway` stands before them. `endpoint` is another place to promote to.
    `max_adapters` is how many either has room for.
    """

    ray_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = "2.60.0"
    head: PodResources = PodResources(cpus=8, memory_gib=32, shared_memory_gib=8)
    replica: PodResources = PodResources(cpus=16, memory_gib=128, shared_memory_gib=16)

    gpus_per_replica: Annotated[int, between(1, 8)] = 1
    min_replicas: Annotated[int, between(1, 8)] = 1
    max_replicas: Annotated[int, between(1, 8)] = 1
    requests_per_replica: Annotated[int, between(1, 1_000)] = 16
    max_adapters: Annotated[int, between(1, 64)] = 4
    gateway: Gateway | None = None
    endpoint: InferenceEndpoint | None = None

    @property
    def scales(self) -> bool:
        """Whether the number of replicas follows the load."""
        return self.max_replicas > self.min_replicas

    @model_validator(mode="after")
    def _room_for_a_rollout(self) -> Self:
        if self.endpoint and self.max_adapters < 3:
            raise ValueError(
                f"max_adapters = {self.max_adapters}: an endpoint needs room for 3, which are what is live, "
                "what was before, and the candidate"
            )
        return self

    @model_validator(mode="after")
    def _replicas_in_order(self) -> Self:
        in_order("replicas", self.min_replicas, self.max_replicas)
        return self
