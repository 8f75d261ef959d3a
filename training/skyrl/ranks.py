"""The policy's ranks: a checkpoint of what is trainable only, readable at any number of ranks."""

import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from training.errors import DataError
from training.exports import CONFIG, WEIGHTS

ADAPTER, OPTIMIZER, PROGRESS = "adapter", "optimizer.safetensors", "progress.json"
_NAME = "default"  # of the one adapter, in the names of PEFT's parameters


def reseed(seed: int) -> None:
    """Every generator of this process, so that what a step draws depends on nothing that came before."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class PolicyRank(FSDPPolicyWorkerBase):
    """SkyRL's rank with our checkpoints. Its own hold the frozen base and fit one number of ranks."""

    def begin_step(self, seed: int) -> None:
        """`seed` is the step's; each rank draws differently."""
        reseed(seed + self._rank)

    def save_checkpoint(self, ckpt_dir: str, tokenizer: Any = None) -> None:
        """Called on every rank; rank 0 writes the adapter as PEFT does, the optimizer, and the schedule."""
        weights = dict(self._trainable())
        moments = {
            f"{key}/{name}": torch.as_tensor(value)
            for name, parameter in weights.items()
            for key, value in self.optimizer.state[parameter].items()
        }
        whole = _gather(weights | moments)
        if whole is not None:
            parts = ({name: whole[name] for name in names} for names in (weights, moments))
            self._write(Path(ckpt_dir), *parts)
        dist.barrier()

    def _write(self, folder: Path, weights: Mapping[str, Any], moments: Mapping[str, Any]) -> None:
        adapter = folder / ADAPTER
        adapter.mkdir(parents=True, exist_ok=True)
        _save(weights, adapter / WEIGHTS)
        (adapter / CONFIG).write_text(json.dumps(self._adapter_config(), indent=2, sort_keys=True) + "\n")
        _save(moments, folder / OPTIMIZER)
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
        schedule = {k: v for k, v in self.scheduler.state_dict().items() if k != "lr_lambdas"}
        (folder / PROGRESS).write_text(json.dumps({"groups": groups, "schedule": schedule}))

    def load_checkpoint(
        self, ckpt_dir: str, load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True
    ) -> None:
        """Called on every rank; each takes its shards, however many ranks wrote the checkpoint."""
        folder = Path(ckpt_dir)
        parameters = dict(self._trainable())
        with safe_open(folder / ADAPTER / WEIGHTS, "pt") as weights:
            _require_same(set(weights.keys()), set(parameters), folder)
            for name, parameter in parameters.items():
                with torch.no_grad():
                    parameter.copy_(_shard(weights.get_tensor(name), parameter))
        if load_optimizer_states:
            with safe_open(folder / OPTIMIZER, "pt") as moments:
                for entry in moments.keys():  # noqa: SIM118 - it is no dictionary
                    key, _, name = entry.partition("/")
                    value = moments.get_tensor(entry)
                    parameter = parameters[name]
                    if value.shape == parameter.shape:
                        value = _shard(value, parameter)
                    self.optimizer.state[parameter][key] = value
        if load_lr_scheduler_states:
            progress = json.loads((folder / PROGRESS).read_bytes())
            for group, saved in zip(self.optimizer.param_groups, progress["groups"], strict=True):
                group.update({k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()})
            self.scheduler.load_state_dict({**self.scheduler.state_dict(), **progress["schedule"]})
        dist.barrier()

    def _trainable(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Every parameter that learns, by the name that PEFT gives it in an adapter's file."""
        for name, parameter in self.model.model.named_parameters():
            if parameter.requires_grad:
                yield name.replace(f".{_NAME}.", "."), parameter

    def _adapter_config(self) -> dict[str, Any]:
        config = asdict(self.model.model.peft_config[_NAME])
        return {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}


def _gather(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """On rank 0 every tensor in one piece and in memory, elsewhere None.

    All shards go in one message: one collective for each of hundreds of tensors takes longer than a step.
    """
    local, split = {}, set()
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            if tensor.device_mesh.ndim == 1 and tensor.placements == (Shard(0),):
                split.add(name)
                tensor = tensor.to_local()
            else:
                tensor = tensor.full_tensor()
        local[name] = tensor.detach().to("cpu", copy=True).contiguous()
    shares: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object({name: local[name] for name in split}, shares)
    if shares is None:
        return None
    return {
        name: torch.cat([share[name] for share in shares]) if name in split else tensor
        for name, tensor in local.items()
    }


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Raises OSError where the file system fails: safetensors tells of a full disk in words only, and what
    has no number would be taken for a fault of the code."""
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if not number:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _shard(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part, laid out as `like`. Every rank has the whole, so nothing is sent."""
    if whole.shape != like.shape:
        raise DataError(
            f"a tensor of the checkpoint has shape {tuple(whole.shape)}, the adapter {tuple(like.shape)}",
            "the recipe's adapter is another one than the checkpoint's",
        )
    if not isinstance(like, DTensor):
        return whole.to(like.device, like.dtype)
    whole = whole.to(like.device, like.dtype)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def _require_same(found: set[str], wanted: set[str], folder: Path) -> None:
    if found != wanted:
        odd = sorted(found ^ wanted)
        raise DataError(
            f"{folder} holds another adapter: {len(odd)} tensors differ, {odd[0]} for one",
            "the recipe's adapter is another one than the checkpoint's",
        )
