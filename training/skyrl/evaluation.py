"""Plays evaluation splits with the rollouts' engine, through the evaluator that plays endpoints too."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend

from training import lineage, seal, splits
from training.environments import Task
from training.evaluate import (
    EvaluationSettings,
    Progress,
    opening,
    play,
    read_records,
    summarize,
)
from training.events import EventLog
from training.files import read_json, tree_digest, write_json
from training.recipe import Recipe
from training.skyrl.policy import EnginePolicy

CANARIES = 8


class Evaluator:
    """Plays splits, each under a label; what a label's file already holds is not played again."""

    def __init__(
        self,
        *,
        client: Any,
        generator: Any,
        recipe: Recipe,
        run_dir: Path,
        events: EventLog,
        sampling: Any,
        backend_name: str,
    ):
        self._client = client
        self._model = generator.policy_model_name
        self._recipe, self._run_dir, self._events = recipe, run_dir, events
        self._sampling = get_sampling_params_for_backend(backend_name, sampling)

    def play(self, split: str, label: str, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
        """Greedy, every task once; returns the summary that is also written beside the records.

        A sealed split is played once per policy; a finished play is read. Raises ConfigError otherwise.
        """
        path = self._run_dir / "evaluations" / f"{label}.jsonl"
        if any(play["label"] == label for play in lineage.read(self._run_dir).get(seal.PLAYS, [])):
            return read_json(path.with_suffix(".summary.json"))
        env, candidate = self._recipe.environment, self._policy_name(label)
        seal.check(self._run_dir, candidate, split, label)
        if split not in seal.SEALED:
            _forget_others(path, candidate)
        rows = lineage.read_split(self._run_dir, split)
        settings = EvaluationSettings(
            env.make(), max_turns=env.max_turns, reward=env.reward, policy=candidate
        )

        shown = 0

        def report(progress: Progress) -> None:
            nonlocal shown
            if progress.finished > shown:
                shown = progress.finished
                self._events.emit("evaluating", label=label, **asdict(progress))

        rollout = self._recipe.rollout
        longest = rollout.max_model_len_tokens - rollout.max_new_tokens
        policy = EnginePolicy(self._client, self._model, self._sampling, loop, longest)
        tasks = [splits.row_task(row) for row in rows]
        self._events.emit("evaluating", label=label, **asdict(Progress(0, len(tasks), 0, 0)))
        summary = summarize(play(policy, tasks, settings, report, path)).to_json()
        write_json(path.with_suffix(".summary.json"), summary)
        lineage.record_evaluation(self._run_dir, label, path, {"split": split, **summary})
        seal.log(self._run_dir, candidate, split, label, path)
        self._events.emit("evaluation", label=label, split=split, **summary)
        if label == "final":
            self._write_canaries(policy, tasks[:CANARIES], settings)
        return summary

    def _write_canaries(self, policy: EnginePolicy, tasks: list[Task], settings: EvaluationSettings) -> None:
        """What the trained policy answers to a few opening pictures: a server must say the same."""
        canaries = opening(tasks, settings)
        rows = [
            {
                "key": canary.key,
                "token_ids": list(output["response_ids"][0]),
                "logprobs": list(output["response_logprobs"][0]),
            }
            for canary, output in zip(canaries, policy.complete(canaries), strict=True)
        ]
        write_json(self._run_dir / "canaries.json", rows)

    def _policy_name(self, label: str) -> str:
        """The adapter in use, by content; the base before the first step."""
        synced = self._run_dir / "lora_sync"
        if label == "dev-0000" or label.startswith("baseline") or not synced.is_dir():
            return "base:" + lineage.read(self._run_dir)["base"]["digest"][:16]
        return "adapter:" + tree_digest(synced)[:16]


def _forget_others(path: Path, candidate: str) -> None:
    """A run that lost steps trains them again: what the lost policy did on dev counts no more."""
    if path.exists() and any(record.policy != candidate for record in read_records(path)):
        path.unlink()
