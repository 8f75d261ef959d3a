"""The policy's ranks: a checkpoint of what is trainable only, readable at any number of ranks."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase
from torch.distributed.tensor import DTensor, distribute_tensor

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
        weights, moments = {}, {}
        for name, parameter in self._trainable():
            weights[name] = _whole(parameter)
            for key, value in self.optimizer.state[parameter].items():
                moments[f"{key}/{name}"] = _whole(value)
        if dist.get_rank() == 0:
            self._write(Path(ckpt_dir), weights, moments)
        dist.barrier()

    def _write(self, folder: Path, weights: Mapping[str, Any], moments: Mapping[str, Any]) -> None:
        adapter = folder / ADAPTER
        adapter.mkdir(parents=True, exist_ok=True)
        save_file(dict(weights), adapter / WEIGHTS)
        (adapter / CONFIG).write_text(json.dumps(self._adapter_config(), indent=2, sort_keys=True) + "\n")
        save_file(dict(moments), folder / OPTIMIZER)
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


def _whole(value: Any) -> torch.Tensor:
    """A sharded tensor in one piece, in this process's memory."""
    whole = value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)
    return whole.detach().to("cpu", copy=True).contiguous()


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
