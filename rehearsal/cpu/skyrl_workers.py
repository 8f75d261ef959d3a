"""SkyRL's FSDP2 workers on gloo. Import before anything of `skyrl.backends.skyrl_train.workers`.

Importing this module patches SkyRL and torch in the process: Ray imports it again wherever a worker class
of it is unpickled, so every process of a run is patched the same way.
"""

import importlib.machinery
import os
import sys
import types
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rehearsal.cpu import loopback
from rehearsal.tiny import vision

CPU = torch.device("cpu")


def _import_without_flash_attn() -> None:
    """SkyRL imports flash-attn's padding helpers and never calls them here; there is no CPU build."""
    import peft  # noqa: F401
    from transformers import AutoModelForImageTextToText, PreTrainedModel  # noqa: F401

    package, padding = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.bert_padding")
    for module in (package, padding):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)

    def absent(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("flash-attn has no CPU build; the recipe must not remove padding")

    padding.pad_input = padding.unpad_input = absent
    package.bert_padding = padding
    stand_ins = {"flash_attn": package, "flash_attn.bert_padding": padding}
    sys.modules.update(stand_ins)
    try:
        import skyrl.backends.skyrl_train.workers.model_wrapper  # noqa: F401
    finally:
        for name in stand_ins:
            sys.modules.pop(name, None)  # transformers would take them for the real package


def _without_cuda() -> None:
    """SkyRL asks torch.cuda for devices that are only declared to Ray here."""
    torch.cuda.is_available = lambda: False
    torch.cuda.current_device = lambda: CPU
    torch.cuda.device_count = lambda: 1
    for name in ("synchronize", "empty_cache", "set_device"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)


def _create_device_mesh(world_size: int, fsdp_size: int) -> DeviceMesh:
    if fsdp_size < 0 or fsdp_size >= world_size:
        return init_device_mesh("cpu", (world_size,), mesh_dim_names=["fsdp"])
    return init_device_mesh("cpu", (world_size // fsdp_size, fsdp_size), mesh_dim_names=["ddp", "fsdp"])


def _sync_non_persistent_buffers(model: torch.nn.Module, loaded_sd: Any) -> None:
    """As SkyRL's, without moving buffers through a GPU: rank 0's values go to every rank."""
    for module in model.modules():
        for key in sorted(getattr(module, "_non_persistent_buffers_set", set())):
            buffer = module._buffers.get(key)
            if buffer is None:
                continue
            value = (
                buffer.detach().clone()
                if dist.get_rank() == 0
                else torch.empty(buffer.shape, dtype=buffer.dtype)
            )
            dist.broadcast(value, src=0)
            module._buffers[key] = value


_import_without_flash_attn()
_without_cuda()
loopback.install()
vision.install()

import skyrl.backends.skyrl_train.distributed.fsdp_strategy as fsdp_strategy  # noqa: E402
import skyrl.backends.skyrl_train.distributed.fsdp_utils as fsdp_utils  # noqa: E402
import skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker as fsdp_worker  # noqa: E402
from skyrl.backends.skyrl_train.workers.worker import MeshRank  # noqa: E402

from training.skyrl.ranks import PolicyRank  # noqa: E402

fsdp_strategy.create_device_mesh = _create_device_mesh
fsdp_utils._sync_non_persistent_buffers = _sync_non_persistent_buffers


class _OnCpu:
    def init_worker_process_group(self) -> None:
        torch.set_num_threads(1)
        seconds = int(os.environ.get("SKYRL_WORKER_NCCL_TIMEOUT_IN_S", "120"))
        dist.init_process_group(backend="gloo", timeout=timedelta(seconds=seconds))
        data_parallel = self._world_size // self.sequence_parallel_size
        self.device_mesh = init_device_mesh(
            "cpu", mesh_shape=(data_parallel, self.sequence_parallel_size), mesh_dim_names=("dp", "sp")
        )
        self.mesh_rank = MeshRank(
            dp=self.device_mesh.get_local_rank(mesh_dim="dp"),
            sp=self.device_mesh.get_local_rank(mesh_dim="sp"),
            tp=0,
            pp=0,
            world_size=self._world_size,
            dp_size=self.device_mesh.size(0),
            pp_size=1,
        )

    def _set_numa_affinity(self, rank: int) -> None:
        """There are no GPUs to be near."""


class CpuPolicyRank(_OnCpu, PolicyRank):
    """The policy's rank; adapters reach the engines as files, so no weight channel is opened."""

    async def init_weight_sync_state(self, inference_engine_client: Any, inference_engine_cfg: Any) -> None:
        self._weight_sync_inference_client = inference_engine_client
        dist.barrier()


class CpuRefWorker(_OnCpu, fsdp_worker.FSDPRefWorkerBase):
    """The frozen reference, where a recipe uses one."""


fsdp_worker.RefWorker = ray.remote(num_gpus=1)(CpuRefWorker)
