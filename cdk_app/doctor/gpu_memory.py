"""GPU memory of a recipe on one GPU: of the engine while it plays, of the trainer while it learns.

The two take turns on each GPU (SkyRL's `colocate_all`): the engine's weights sleep on the host while the
trainer works, and the trainer's shards lie on the host while the engine plays. So each phase must fit alone.

Rollout, in bytes, within `gpu_memory_utilization` of the GPU:
    weights    parameters x bytes of the recipe's dtype
    adapter    LoRA parameters x bytes of the dtype
    work       one prefill of 8192 tokens through the widest layer, logits of 1024 sequences in float32 twice
               (SkyRL's defaults), and 1 GiB of CUDA graphs
    KV cache   the rest; one token takes 2 x layers x KV heads x head size x bytes. It must hold one sequence
               of `max_model_len_tokens`, or vLLM refuses to start.

Training, per rank, with S = max_input_tokens + max_new_tokens and B = micro_batch_episodes:
    shards     parameters in float32 / ranks (SkyRL keeps float32 masters), and those of the adapter with
               their gradient and Adam's two moments: 16 bytes / ranks
    gathered   embedding and head, and two layers (FSDP2 fetches one ahead), in the dtype
    saved      B x S x hidden for each layer (gradient checkpointing keeps a layer's input only)
    layer      B x S x (8 hidden + 3 intermediate + 2 (query + 2 KV widths)): one layer computed again
    logits     B x S x vocabulary three times: themselves, their log-softmax, their gradient
Attention is taken to need no S x S matrix (flash or memory-efficient kernels), and padding to be the worst:
every episode of a micro-batch as long as the longest allowed. 3 GiB are left to CUDA contexts, NCCL and the
sleeping engine. None of this has been measured on a GPU yet.
"""

from dataclasses import dataclass

from cdk_app.doctor.shapes import Shape
from training.recipe import Recipe

GIB = 2**30
DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
_PREFILL_TOKENS, _SEQUENCES = 8192, 1024
_GRAPHS_GIB = 1.0
_RESIDENT_GIB = 3.0
_LOGIT_COPIES = 3


@dataclass(frozen=True)
class Rollout:
    """GiB of one engine. `kv_gib` is what is left for the cache, `token_bytes` what one token takes of it."""

    weights_gib: float
    work_gib: float
    kv_gib: float
    token_bytes: int

    @property
    def tokens(self) -> int:
        return max(0, int(self.kv_gib * GIB / self.token_bytes))


@dataclass(frozen=True)
class Training:
    """GiB of one rank at the peak of a backward pass."""

    shards_gib: float
    gathered_gib: float
    activations_gib: float
    logits_gib: float
    resident_gib: float = _RESIDENT_GIB

    @property
    def total_gib(self) -> float:
        return sum(vars(self).values())

    def __str__(self) -> str:
        return " + ".join(f"{gib:.1f} {name.removesuffix('_gib')}" for name, gib in vars(self).items())


def rollout(recipe: Recipe, shape: Shape, gpu_gib: float) -> Rollout:
    size = DTYPE_BYTES[recipe.policy.dtype]
    lora = shape.lora_parameters(recipe.policy.lora_rank, recipe.policy.exclude_modules)
    weights = (shape.parameters + lora) * size / GIB
    prefill = _PREFILL_TOKENS * (2 * shape.intermediate + 4 * shape.hidden) * size
    work = (prefill + 2 * _SEQUENCES * shape.vocabulary * 4) / GIB + _GRAPHS_GIB
    kv = recipe.rollout.gpu_memory_utilization * gpu_gib - weights - work
    return Rollout(weights, work, kv, 2 * shape.layers * shape.kv_heads * shape.head_size * size)


def training(recipe: Recipe, shape: Shape, micro_batch: int | None = None) -> Training:
    size, ranks = DTYPE_BYTES[recipe.policy.dtype], recipe.topology.ranks
    lora = shape.lora_parameters(recipe.policy.lora_rank, recipe.policy.exclude_modules)
    tokens = micro_batch or recipe.optimization.micro_batch_episodes
    tokens *= recipe.rollout.max_input_tokens + recipe.rollout.max_new_tokens
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = 8 * shape.hidden + 3 * shape.intermediate + 2 * (queries + 2 * keys)
    return Training(
        shards_gib=(4 * shape.parameters + 16 * lora) / ranks / GIB,
        gathered_gib=(shape.embedding_parameters + 2 * shape.layer_parameters) * size / GIB,
        activations_gib=tokens * (shape.layers * shape.hidden + layer) * size / GIB,
        logits_gib=_LOGIT_COPIES * tokens * shape.vocabulary * size / GIB,
    )


def largest_micro_batch(recipe: Recipe, shape: Shape, room_gib: float) -> int:
    """The largest divisor of a rank's episodes that fits; 0 when not even one episode does."""
    per_rank = recipe.optimization.mini_batch_mazes * recipe.rollout.samples_per_maze // recipe.topology.ranks
    fitting = (
        b
        for b in range(1, per_rank + 1)
        if per_rank % b == 0 and training(recipe, shape, b).total_gib <= room_gib
    )
    return max(fitting, default=0)
