"""Plays evaluation splits with the rollouts' engine, through the evaluator that plays endpoints too."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend

from training import exports, lineage, plays, seal, splits
from training.environments import Task
from training.evaluate import EvaluationSettings, Progress, opening, read_records
from training.events import EventLog
from training.files import write_json
from training.locks import WAIT_S
from training.plays import Play
from training.recipe import Recipe
from training.skyrl.policy import EnginePolicy

CANARIES = 8
LIVE_EPISODES = 64
"""Each holds its pictures in the engines: hundreds at once took 6 GiB more on a laptop."""


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
        """Greedy, every task once; returns the manifest's entry. What is finished is read, not repeated."""
        env, candidate = self._recipe.environment, self._policy_name(label)
        if split not in seal.SEALED:
            _forget_others(self._run_dir, label, candidate)
        tasks = [splits.row_task(row) for row in lineage.read_drawn(self._run_dir, split)]
        settings = EvaluationSettings(
            env.make(),
            max_turns=env.max_turns,
            reward=env.reward,
            policy=candidate,
            batch=LIVE_EPISODES,
        )
        rollout = self._recipe.rollout
        longest = rollout.max_model_len_tokens - rollout.max_new_tokens
        policy = EnginePolicy(self._client, self._model, self._sampling, loop, longest)

        shown = 0

        def report(progress: Progress) -> None:
            nonlocal shown
            if progress.finished > shown:
                shown = progress.finished
                self._events.emit("evaluating", label=label, **asdict(progress))

        self._events.emit("evaluating", label=label, **asdict(Progress(0, len(tasks), 0, 0)))
        what = Play(split, label, tasks, settings, sealed_as=candidate)
        # A driver that lost the run may still be dying, and let go of the play only then.
        entry = plays.perform(self._run_dir, what, lambda: policy, report, wait_s=WAIT_S)
        self._events.emit("evaluation", label=label, **entry)
        if label == "final":
            self._write_canaries(policy, tasks[:CANARIES], settings)
        return entry

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
        return "adapter:" + exports.digest(synced)[:16]


def _forget_others(run_dir: Path, label: str, candidate: str) -> None:
    """A run that lost steps trains them again: what the lost policy did on dev counts no more."""
    path = plays.records_path(run_dir, label)
    if path.exists() and any(record.policy != candidate for record in read_records(path)):
        with lineage.changing(run_dir) as manifest:
            manifest["evaluations"].pop(label, None)
        path.unlink()
