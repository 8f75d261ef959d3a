"""What differs between substrates, in one object: CUDA on the cluster, gloo on a laptop."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Backend:
    """Settings that the hardware decides, not the recipe.

    `trainer_overrides` are SkyRL keys; `engine_arguments` go to the small engine's `vllm.LLM`,
    `engine_environment` are its process variables. Engines may start beside the models only where neither
    measures free GPU memory. `server_overrides` are SkyRL keys for its own servers, and `server_setup` names
    a function that their processes call first ("module.function"). `policy_rank` is the class of the ranks
    where CUDA's will not do.
    """

    name: str
    trainer_overrides: Mapping[str, Any] = field(default_factory=dict)
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)
    engine_environment: Mapping[str, str] = field(default_factory=dict)
    server_overrides: Mapping[str, Any] = field(default_factory=dict)
    engines_start_beside_models: bool = False
    server_setup: str = ""
    server_executor: str = ""
    policy_rank: type | None = None


CUDA = Backend(name="cuda")
