"""A training recipe: everything about one run that a researcher chooses, validated before money is spent.

The batch rules are those that SkyRL 0.4.0 really enforces, partly only after the first rollout
(its own check divides with rounding): see `_check_batches`.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from training import environments, toml_settings
from training.errors import ConfigError
from training.files import read_object, write_atomic
from training.toml_settings import Section


class Topology(Section):
    """The Ray cluster that the recipe needs: one head without GPUs and equal workers."""

    worker_nodes: int = Field(ge=1, le=64)
    gpus_per_node: int = Field(ge=1, le=16)

    @property
    def ranks(self) -> int:
        """FSDP ranks, one per GPU."""
        return self.worker_nodes * self.gpus_per_node


class Policy(Section):
    """The base model and the adapter trained on it."""

    base_model: str = Field(
        pattern=r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*$",
        description="folder of the base, relative to the shared file system",
    )
    lora_rank: int = Field(ge=1, le=256)
    lora_alpha: int = Field(ge=1)
    exclude_modules: str = Field(
        default=".*visual.*", description="regular expression of modules without an adapter"
    )
    dtype: Literal["float32", "bfloat16"] = "bfloat16"


class Environment(Section):
    """The kind of task, by its name in training.environments with its options, and how it is played."""

    name: str = "maze"
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    max_turns: int = Field(ge=1, le=100)
    reward: str = "solve-format-v1"

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        try:
            self.make()
        except ConfigError as error:
            raise ValueError(f"{error.problem}; {error.remedy}") from None
        return self

    def make(self) -> environments.Environment:
        """The environment itself."""
        return environments.named(self.name, **self.options)


class Data(Section):
    """How many mazes each split has; the test is the published 64. The limits are those of the pools."""

    seed: int = Field(default=0, ge=0)
    train_mazes: int = Field(ge=1)
    dev_mazes: int = Field(ge=1, le=256)
    test_512_mazes: int = Field(default=512, ge=1, le=512)
    ood_mazes: int = Field(
        default=192, ge=3, le=192, multiple_of=3, description="a third each of bigger, mirrored, recoloured"
    )


class Rollout(Section):
    """How episodes are sampled."""

    engine: Literal["in-process", "skyrl-servers"]
    engines: int = Field(ge=1)
    samples_per_maze: int = Field(ge=2, description="the group of GRPO: episodes of one maze")
    temperature: float = Field(gt=0, le=2)
    max_new_tokens: int = Field(ge=1)
    max_input_tokens: int = Field(ge=64)
    max_model_len_tokens: int = Field(ge=128)
    text_tokens_only: bool = Field(
        default=False, description="never sample special tokens but the end of turn (small vocabularies)"
    )
    kv_cache_mib: int = Field(default=128, ge=16, description="used where the engine cannot measure a GPU")
    gpu_memory_utilization: float = Field(default=0.45, gt=0, lt=1)


class Optimization(Section):
    """GRPO updates."""

    steps: int = Field(ge=1)
    mazes_per_step: int = Field(ge=1)
    mini_batch_mazes: int = Field(ge=1)
    micro_batch_episodes: int = Field(ge=1, description="episodes per rank and forward pass")
    learning_rate: float = Field(gt=0, lt=1)
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant_with_warmup", "cosine", "linear"] = "constant_with_warmup"
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_logprob_gap: float = Field(
        gt=0, description="the run stops when trainer and engine differ by more on average"
    )


class Evaluation(Section):
    """When the dev split is played; the test is played before the first and after the last step only."""

    every_steps: int = Field(ge=1)


class Checkpoints(Section):
    every_steps: int = Field(ge=1)
    keep: int = Field(ge=1)


class Gate(Section):
    """What a candidate has to show to pass (`skypod gate`), fixed before the run starts. All are shares.

    Tests are two-sided at `alpha` and intervals have the level 1 - alpha, both corrected for the number of
    candidates that saw the split; the ends of intervals decide, not the estimates.
    """

    split: Literal["test", "test-512"] = Field(
        default="test-512", description="sealed split on which base, incumbent and candidate are paired"
    )
    alpha: float = Field(default=0.05, ge=1e-6, le=0.2)
    min_solve_rate: float = Field(
        default=0.9, ge=0, lt=1, description="the solve rate's exact interval has to begin here or above"
    )
    min_gain: float = Field(
        default=0.0, ge=0, lt=1, description="the interval of candidate - base has to begin above this"
    )
    max_incumbent_drop: float = Field(
        default=0.03, ge=0, lt=1, description="the interval of candidate - incumbent must not begin lower"
    )
    max_lost_share: float = Field(
        default=0.05, ge=0, le=1, description="of the tasks that base or incumbent solved"
    )
    max_ood_drop: float = Field(
        default=0.1, ge=0, lt=1, description="the interval of candidate - base on ood must not begin lower"
    )
    min_format_rate: float = Field(default=0.95, ge=0, le=1, description="turns that are an action")


class Recovery(Section):
    """When the supervisor starts a failed run again, and when it gives up (docs/how-to/recovery.md).

    Hours and money count from the first attempt while the run is supervised, waiting included; attempts count
    from the last time that a person resumed the run.
    """

    max_attempts: int = Field(default=30, ge=1)
    max_fruitless_attempts: int = Field(
        default=3, ge=1, description="in a row, none of which wrote a checkpoint: a crash loop"
    )
    max_hours: float | None = Field(default=None, gt=0)
    max_usd: float | None = Field(default=None, gt=0, description="at the price that `submit` is told")
    stall_s: float = Field(
        default=1800,
        ge=10,
        description="without an event of the run it hangs; above NCCL's own 600 s, whose error says more",
    )
    head_grace_s: float = Field(
        default=120, ge=5, description="without an answer of the Ray head nor an event the head is lost"
    )
    topology_timeout_s: float = Field(
        default=5400, ge=10, description="for all nodes to be there; a GPU node takes 30 to 40 minutes"
    )
    backoff_s: float = Field(
        default=15, gt=0, description="before the next attempt; each fruitless one doubles it"
    )
    longest_backoff_s: float = Field(default=600, gt=0)
    lease_patience_s: float = Field(
        default=60, ge=1, description="a supervisor that shows no sign of life for so long is replaced"
    )


class Recipe(Section):
    """One training run, resolved. `seed` drives weights of the adapter, data order and sampling."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{1,40}$")
    seed: int = Field(ge=0)
    topology: Topology
    policy: Policy
    environment: Environment
    data: Data
    rollout: Rollout
    optimization: Optimization
    evaluation: Evaluation
    checkpoints: Checkpoints
    gate: Gate = Gate()
    recovery: Recovery = Recovery()

    @model_validator(mode="after")
    def _check_batches(self) -> Self:
        ranks, n = self.topology.ranks, self.rollout.samples_per_maze
        opt = self.optimization
        if opt.mazes_per_step % opt.mini_batch_mazes:
            raise ValueError(
                f"optimization.mazes_per_step = {opt.mazes_per_step} is not a multiple of "
                f"mini_batch_mazes = {opt.mini_batch_mazes}; {self._sizes_that_divide()}"
            )
        if (opt.mini_batch_mazes * n) % ranks:
            raise ValueError(
                f"{opt.mini_batch_mazes} mazes x {n} samples = {opt.mini_batch_mazes * n} episodes of a "
                f"mini-batch cannot be divided among {ranks} ranks; {self._sizes_that_divide()}"
            )
        per_rank = opt.mini_batch_mazes * n // ranks
        if per_rank % opt.micro_batch_episodes:
            divisors = [d for d in range(1, per_rank + 1) if per_rank % d == 0]
            raise ValueError(
                f"optimization.micro_batch_episodes = {opt.micro_batch_episodes} does not divide the "
                f"{per_rank} episodes of a rank; use one of {divisors}"
            )
        if self.data.train_mazes < opt.mazes_per_step:
            raise ValueError(
                f"data.train_mazes = {self.data.train_mazes} is less than one step of "
                f"{opt.mazes_per_step} mazes"
            )
        if self.rollout.engines > ranks:
            raise ValueError(f"rollout.engines = {self.rollout.engines} is more than the {ranks} GPUs")
        if self.rollout.engine == "skyrl-servers" and self.rollout.engines != ranks:
            raise ValueError(
                f"rollout.engines = {self.rollout.engines}: SkyRL's own servers run one on each GPU that "
                f"trains; set it to {ranks}, or rollout.engine to 'in-process'"
            )
        if self.rollout.max_input_tokens + self.rollout.max_new_tokens > self.rollout.max_model_len_tokens:
            raise ValueError(
                "rollout.max_input_tokens + max_new_tokens exceeds max_model_len_tokens = "
                f"{self.rollout.max_model_len_tokens}"
            )
        return self

    def _sizes_that_divide(self) -> str:
        """Mini-batch sizes near the chosen one that all ranks can share."""
        ranks, n, chosen = (
            self.topology.ranks,
            self.rollout.samples_per_maze,
            self.optimization.mini_batch_mazes,
        )
        fit = [m for m in range(1, chosen * 2 + ranks + 1) if (m * n) % ranks == 0]
        near = sorted(sorted(fit, key=lambda m: abs(m - chosen))[:3])
        return (
            f"mini_batch_mazes that fit {ranks} ranks with {n} samples: {near} (mazes_per_step: a multiple)"
        )


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe. Raises ConfigError with every fault of the file."""
    return toml_settings.load(path, Recipe, overrides)


def parse(text: str, source: str) -> Recipe:
    """A recipe that is no file here. Raises ConfigError as `load` does."""
    try:
        return toml_settings.parse(tomllib.loads(text), Recipe, source=source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}", "name another with --recipe") from None


def find(name: str, folder: Path) -> Path:
    """A recipe by name (`maze-smoke`, or `smoke` for short) or by path."""
    given = Path(name)
    if given.suffix == ".toml":
        return given
    for candidate in (folder / f"{name}.toml", folder / f"maze-{name}.toml"):
        if candidate.is_file():
            return candidate
    return folder / f"{name}.toml"


def seeded(recipe: Recipe, seed: int) -> Recipe:
    """The recipe of one seed."""
    return recipe.model_copy(update={"seed": seed, "data": recipe.data.model_copy(update={"seed": seed})})


def but_for_seed(recipe: Recipe) -> dict[str, Any]:
    """What the runs of one recipe share, as plain data: all but its seeds, and `recovery`, which changes no
    result."""
    return seeded(recipe, 0).model_dump(mode="json", exclude={"recovery"})


def write_resolved(recipe: Recipe, path: Path) -> None:
    """Keep the resolved recipe beside the run."""
    write_atomic(path, json.dumps(recipe.model_dump(mode="json"), indent=2) + "\n")


def read_resolved(path: Path) -> Recipe:
    """Raises DataError for a file that is no JSON object, ConfigError for one that is no recipe."""
    return toml_settings.parse(read_object(path), Recipe, source=str(path))
