"""A checkpoint of six ranks goes on at six, four, two or one, to the bits of a run that was never cut."""

import errno
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("skyrl")

import rehearsal.cpu.skyrl_workers  # noqa: F401  isort: skip - patches SkyRL before it is used

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from peft import LoraConfig
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import get_scheduler

from rehearsal.drills import disk
from training.errors import DataError
from training.exports import WEIGHTS
from training.skyrl import ranks
from training.skyrl.ranks import ADAPTER, OPTIMIZER, PolicyRank, reseed

STEPS, CUT = 6, 3


class Adapted(nn.Module):
    """A frozen layer with an adapter whose shapes no number of ranks divides; parameters named as PEFT's."""

    def __init__(self, width: int = 7):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.base = nn.Linear(width, width)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(width, 3, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(3, width, bias=False)})
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.base.requires_grad_(False)
        self.peft_config = {
            "default": LoraConfig(r=3, target_modules=["v_proj", "q_proj"], task_type="CAUSAL_LM")
        }


def rank_of(model: nn.Module) -> PolicyRank:
    """A rank as far as checkpoints are concerned."""
    rank = PolicyRank.__new__(PolicyRank)
    rank.model = SimpleNamespace(model=model)
    rank.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    rank.scheduler = get_scheduler("cosine", rank.optimizer, num_warmup_steps=2, num_training_steps=STEPS)
    return rank


def train(rank: PolicyRank, first: int, last: int) -> None:
    """Steps whose gradients follow from the step alone; each rank takes its share of them."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    for step in range(first, last + 1):
        generator = torch.Generator().manual_seed(step)
        for _, parameter in rank._trainable():
            gradient = torch.randn(parameter.shape, generator=generator)
            if isinstance(parameter, DTensor):
                gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
            parameter.grad = gradient
        rank.optimizer.step()
        rank.scheduler.step()


def work(index: int, world: int, folder: str, first: int, last: int, resume: str, save: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=index, world_size=world)
    model = Adapted()
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    rank = rank_of(model)
    if resume:
        rank.load_checkpoint(resume)
    train(rank, first, last)
    rank.save_checkpoint(save)
    dist.destroy_process_group()


def run(tmp_path: Path, world: int, first: int, last: int, resume: Path | str, save: Path) -> Path:
    place = tmp_path / f"{world}-{first}-{last}"
    place.mkdir()
    save.mkdir()
    arguments = (world, str(place), first, last, str(resume), str(save))
    mp.start_processes(work, arguments, nprocs=world, start_method="fork")  # a new import takes each 10 s
    return save


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """(checkpoint of six ranks in the middle, checkpoint of the run that was never cut)"""
    place = tmp_path_factory.mktemp("six")
    cut = run(place, 6, 1, CUT, "", place / "cut")
    return cut, run(place, 6, 1, STEPS, "", place / "whole")


@pytest.mark.parametrize("world", [6, 4, 2, 1])
def test_any_number_of_ranks_goes_on_to_the_same_bits(six, tmp_path, world):
    cut, whole = six
    resumed = run(tmp_path, world, CUT + 1, STEPS, cut, tmp_path / "resumed")
    for name in (f"{ADAPTER}/{WEIGHTS}", OPTIMIZER):
        found, wanted = load_file(resumed / name), load_file(whole / name)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert (resumed / "progress.json").read_text() == (whole / "progress.json").read_text()


def test_only_what_learns_is_in_it_under_the_names_of_peft(six):
    weights = load_file(six[0] / ADAPTER / WEIGHTS)
    assert set(weights) == {"lora_A.weight", "lora_B.weight"}
    assert weights["lora_A.weight"].shape == (3, 7)
    assert len(load_file(six[0] / OPTIMIZER)) == 2 * 3


def test_equal_ranks_write_equal_files(six, tmp_path):
    again = run(tmp_path, 6, 1, CUT, "", tmp_path / "again")
    for path in sorted(p for p in six[0].rglob("*") if p.is_file()):
        assert path.read_bytes() == (again / path.relative_to(six[0])).read_bytes(), path.name


def test_another_adapter_is_refused(six, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with pytest.raises(DataError, match="of the checkpoint has shape"):
            rank_of(Adapted(width=8)).load_checkpoint(str(six[0]))
        other = Adapted()
        other.extra = nn.Linear(2, 2)
        with pytest.raises(DataError, match=r"2 tensors differ, extra\.bias"):
            rank_of(other).load_checkpoint(str(six[0]))
    finally:
        dist.destroy_process_group()


def save_on_a_full_disk(index: int, folder: Path) -> None:
    """In a process of its own, whose mounts nobody else sees."""
    if disk.why_not():
        return
    with disk.small(folder / "full"):
        disk.fill(folder / "full")
        with pytest.raises(OSError, match="No space left on device") as raised:
            ranks._save({"weights": torch.zeros(100_000)}, folder / "full" / "weights")
    (folder / "told").write_text(errno.errorcode[raised.value.errno])


def test_a_full_disk_is_told_by_its_number(tmp_path):
    mp.start_processes(save_on_a_full_disk, (tmp_path,), nprocs=1, start_method="fork")
    if not (tmp_path / "told").exists():
        pytest.skip("file systems cannot be mounted here")
    assert (tmp_path / "told").read_text() == "ENOSPC"


def test_a_seed_decides_every_generator():
    def draw() -> tuple:
        return random.random(), np.random.rand(), torch.rand(1).item()

    reseed(2**62 + 1)
    first = draw()
    assert draw() != first
    reseed(2**62 + 1)
    assert draw() == first
