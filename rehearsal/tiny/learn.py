"""Learning to play from whole games with all their pictures in context, and the loop that does it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from rehearsal.tiny import layout, vision
from rehearsal.tiny import tokenizer as words
from rehearsal.tiny.demonstrators import Games

DIRECTIONS = words.STOP + 1
GRADIENT_NORM = 1.0
FINAL_RATE = 0.02
EVERY = 25


def answer_logits(
    model: Any, tiles: torch.Tensor, games: Games, side: int, *, frozen_vision: bool = False
) -> torch.Tensor:
    """Logits [N, turns, ANSWER_LENGTH, vocabulary] of every answer, given all that came before it."""
    played = torch.from_numpy(games.wanted >= 0)
    turns = played.shape[1]
    ids = torch.from_numpy(layout.conversations(games.actions, side))
    shown = (ids == words.token_id(words.IMAGE)) & played.repeat_interleave(layout.turn_length(side), 1)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen_vision):
        features, deepstack = vision.encode(
            model.model.visual, tiles, torch.from_numpy(games.codes)[played], side
        )
    embedded = model.get_input_embeddings()(ids).masked_scatter(shown[..., None], features)
    position = torch.from_numpy(layout.positions(side, turns))[:, None].expand(3, len(ids), -1)
    hidden = model.model.language_model(
        inputs_embeds=embedded,
        position_ids=position,
        visual_pos_masks=shown,
        deepstack_visual_embeds=deepstack,
        use_cache=False,
    ).last_hidden_state
    asked = torch.from_numpy(layout.answer_starts(side, turns))[:, None] + torch.arange(layout.ANSWER_LENGTH)
    return model.lm_head(hidden[:, asked])


def game_loss(
    model: Any, tiles: torch.Tensor, games: Games, side: int, *, frozen_vision: bool = False
) -> torch.Tensor:
    """Cross entropy of the wanted answers of all turns."""
    logits = answer_logits(model, tiles, games, side, frozen_vision=frozen_vision)
    labels = torch.from_numpy(layout.answer_labels(games.actions, games.wanted))
    return F.cross_entropy(logits.flatten(0, 2), labels.flatten(), ignore_index=layout.IGNORED)


@dataclass(frozen=True)
class Schedule:
    """Steps of one stage, highest learning rate (cosine to FINAL_RATE of it) and warm-up steps."""

    steps: int
    rate: float
    warmup: int = 50

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.rate * min(1.0, (step + 1) / self.warmup) * (FINAL_RATE + (1 - FINAL_RATE) * cosine)


def minimize(
    loss_of: Callable[[np.random.Generator], torch.Tensor],
    modules: Iterable[torch.nn.Module],
    schedule: Schedule,
    *,
    seeds: tuple[int, ...],
    state_file: Path,
    on_progress: Callable[[int, float], None],
) -> None:
    """Run a stage; every EVERY steps report (step, mean loss) and save what a restart needs.

    `loss_of(generator)` draws its own batch. The generator depends on `seeds` and the step only, so a
    run that was stopped and one that was not give equal weights.
    """
    modules = list(modules)
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=schedule.rate, weight_decay=0.01, betas=(0.9, 0.95), fused=True
    )
    first = _restore(state_file, modules, optimizer)
    losses: list[float] = []
    for step in range(first, schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate_at(step)
        loss = loss_of(np.random.default_rng([*seeds, step]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, GRADIENT_NORM)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % EVERY == 0 or step + 1 == schedule.steps:
            _store(state_file, modules, optimizer, step + 1)
            on_progress(step + 1, float(np.mean(losses)))
            losses = []


def _store(path: Path, modules: list[torch.nn.Module], optimizer: torch.optim.Optimizer, step: int) -> None:
    partial = path.with_suffix(".partial")
    torch.save(
        {"step": step, "modules": [m.state_dict() for m in modules], "optimizer": optimizer.state_dict()},
        partial,
    )
    os.replace(partial, path)


def _restore(path: Path, modules: list[torch.nn.Module], optimizer: torch.optim.Optimizer) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    for module, saved in zip(modules, state["modules"], strict=True):
        module.load_state_dict(saved)
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
