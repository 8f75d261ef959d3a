"""Host memory of a worker pod and of the head, against what the settings give them.

Worker, in bytes:
    sleeping engines   their weights, once per engine of the node: LoRA runs force vLLM's first sleep level
    shards             the trainer's float32 shards of the node's GPUs while the engine plays
    loading            the whole model in float32, on the node of rank 0, at the start of the run
    object store       all of /dev/shm: Ray may fill it, and it counts against the pod's memory
    processes          8 GiB per GPU: Python, CUDA contexts, pinned buffers of trainer and engine
Head:
    batches            three copies of the pictures of one step: generated, batched, on their way to the ranks
    object store       as above
    processes          16 GiB: driver, dashboard, job server
Ray ends processes when a pod has used 95 % of its memory. A picture is taken to be 256 patches (VisGym's
mazes after Qwen3-VL's processor), values in float32, one picture a turn.
"""

from dataclasses import dataclass

from cdk_app.doctor.gpu_memory import DTYPE_BYTES, GIB
from cdk_app.doctor.shapes import Shape
from stacks.workloads import PodResources
from training.recipe import Recipe

_PATCHES = 256
_RANK_GIB, _HEAD_GIB = 8.0, 16.0
_BATCH_COPIES = 3
USABLE = 0.95


@dataclass(frozen=True)
class Parts:
    """GiB by what takes them."""

    gib: dict[str, float]

    @property
    def total_gib(self) -> float:
        return sum(self.gib.values())

    def __str__(self) -> str:
        return " + ".join(f"{gib:.0f} {what}" for what, gib in self.gib.items())


def pictures_gib(recipe: Recipe, shape: Shape) -> float:
    """The pictures of all episodes of one step."""
    episodes = recipe.optimization.mazes_per_step * recipe.rollout.samples_per_maze
    values = recipe.environment.max_turns * _PATCHES * shape.vision.patch_values
    return episodes * values * 4 / GIB


def worker(recipe: Recipe, shape: Shape, pod: PodResources) -> Parts:
    gpus, ranks = recipe.topology.gpus_per_node, recipe.topology.ranks
    engines = -(-recipe.rollout.engines // recipe.topology.worker_nodes)
    return Parts(
        {
            "sleeping engines": engines * shape.parameters * DTYPE_BYTES[recipe.policy.dtype] / GIB,
            "shards": gpus * shape.parameters * 4 / ranks / GIB,
            "loading": shape.parameters * 4 / GIB,
            "object store": float(pod.shared_memory_gib),
            "processes": gpus * _RANK_GIB,
        }
    )


def head(recipe: Recipe, shape: Shape, pod: PodResources) -> Parts:
    return Parts(
        {
            "batches": _BATCH_COPIES * pictures_gib(recipe, shape),
            "object store": float(pod.shared_memory_gib),
            "processes": _HEAD_GIB,
        }
    )
