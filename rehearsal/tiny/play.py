"""Plays whole boards of mazes with the policy itself, all games in step, on one key-value cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from rehearsal.tiny import atlas, layout, vision
from rehearsal.tiny import tokenizer as words
from rehearsal.tiny.fields import Fields


@dataclass(frozen=True)
class Played:
    """solved bool [N]; turns int [N]; well_formed: share of turns that were actions; actions int [N, turns],
    -1 for an answer that was none and behind the end of a game."""

    solved: np.ndarray
    turns: np.ndarray
    well_formed: float
    actions: np.ndarray

    @property
    def solve_rate(self) -> float:
        return float(self.solved.mean())


@torch.no_grad()
def play(
    model: Any,
    tiles: torch.Tensor,
    fields: Fields,
    turns: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
) -> Played:
    """One game per maze; temperature 0 is greedy. An answer that is no action loses its game at once here."""
    table = _Table(model, tiles, fields.side, len(fields), temperature, seed)
    games = np.arange(len(fields))
    cells, live, solved = fields.start.copy(), np.ones(len(games), bool), np.zeros(len(games), bool)
    history, spoiled = [], 0
    for _ in range(turns):
        action = np.where(live, table.answer(atlas.codes(fields, cells)), -1)
        spoiled += int((live & (action < 0)).sum())
        history.append(action)
        solved |= live & (action == words.STOP) & (cells == fields.goal)
        cells = np.where(live & (action >= 0), fields.moved(cells, np.maximum(action, 0)), cells)
        live &= (action >= 0) & (action != words.STOP)
        if not live.any():
            break
    actions = np.stack(history, 1)
    played = (actions >= 0).sum(1)
    return Played(solved, played, 1 - spoiled / max(1, spoiled + int(played.sum())), actions)


class _Table:
    """The conversations of all games and the cache of what the model has read of them."""

    def __init__(self, model: Any, tiles: torch.Tensor, side: int, games: int, temperature: float, seed: int):
        self._model, self._tiles, self._side, self._games = model, tiles, side, games
        self._temperature = temperature
        self._draws = torch.Generator().manual_seed(seed)
        self._cache = DynamicCache()
        self._read = 0
        self._last: torch.Tensor | None = None
        self._banned = torch.full((len(words.VOCABULARY),), float("-inf"))
        self._banned[words.allowed_token_ids()] = 0.0

    def answer(self, codes: np.ndarray) -> np.ndarray:
        """Show every game its picture and read its answer: int [games], -1 where it is no action."""
        before = [] if self._last is None else [self._last, torch.full_like(self._last, words.token_id("\n"))]
        shown = torch.tensor(layout.observation_ids(self._side)).expand(self._games, -1)
        features = vision.encode(self._model.model.visual, self._tiles, torch.from_numpy(codes), self._side)
        ids = torch.cat([*before, shown], 1)
        said = []
        for _ in range(layout.ANSWER_LENGTH):
            ids = self._sample(self._advance(ids, features))
            said.append(ids)
            features = None
        self._last = said[-1]
        answers = torch.cat(said, 1).numpy()
        matches = (answers[:, None] == layout.answers()).all(2)
        return np.where(matches.any(1), matches.argmax(1), -1)

    def _advance(self, ids: torch.Tensor, features: Any) -> torch.Tensor:
        end = self._read + ids.shape[1]
        turns = -(-end // layout.turn_length(self._side))
        position = torch.from_numpy(layout.positions(self._side, turns))[:, self._read : end]
        embedded = self._model.get_input_embeddings()(ids)
        pictures = {}
        if features is not None:
            mask = ids == words.token_id(words.IMAGE)
            embedded = embedded.masked_scatter(mask[..., None], features[0])
            pictures = {"visual_pos_masks": mask, "deepstack_visual_embeds": features[1]}
        hidden = self._model.model.language_model(
            inputs_embeds=embedded,
            position_ids=position[:, None].expand(3, self._games, -1),
            past_key_values=self._cache,
            use_cache=True,
            **pictures,
        ).last_hidden_state
        self._read = end
        return self._model.lm_head(hidden[:, -1])

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits + self._banned
        if self._temperature == 0:
            return logits.argmax(-1, keepdim=True)
        chances = (logits / self._temperature).softmax(-1)
        return torch.multinomial(chances, 1, generator=self._draws)
