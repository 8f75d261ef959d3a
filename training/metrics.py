"""Every metric that a run emits: one name, unit and meaning; dashboards and alerts are built from this table.

The trainer reports SkyRL's own keys; `from_skyrl` maps them to these names. They go to metrics.jsonl and, as
gauges of Ray, to whatever scrapes the head. Nothing else may be plotted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Metric:
    """`name` is the key in metrics.jsonl."""

    name: str
    unit: str
    meaning: str
    skyrl_key: str = ""

    @property
    def gauge(self) -> str:
        """The name under which a run sets it."""
        return f"skypod_{self.name}"

    @property
    def prometheus(self) -> str:
        """The name that Prometheus scrapes: Ray puts its own prefix before a gauge's."""
        return f"ray_{self.gauge}"


_STEP = [
    Metric(
        "train_solve_rate",
        "share",
        "episodes of the step that ended with stop on the goal",
        "environment/solved",
    ),
    Metric(
        "train_format_rate", "share", "turns of the step that held a valid action", "environment/format_ok"
    ),
    Metric("train_turns", "turns", "mean turns per episode", "environment/turns"),
    Metric("reward_mean", "reward", "mean shaped reward", "reward/avg_raw_reward"),
    Metric(
        "skyrl_pass_at_n",
        "share",
        "SkyRL's pass@n: any sample with a positive last reward; not a solve rate",
        "reward/avg_pass_at_n",
    ),
    Metric(
        "zero_variance_groups",
        "share",
        "groups whose samples all got the same reward: they teach nothing",
        "skypod/zero_variance_groups",
    ),
    Metric(
        "reward_std_in_group",
        "reward",
        "standard deviation of the reward within a group, mean over groups",
        "skypod/reward_std_in_group",
    ),
    Metric("answer_tokens", "tokens", "mean length of an answer", "generate/tokens_per_turn_mean"),
    Metric("policy_loss", "loss", "clipped policy loss", "policy/policy_loss"),
    Metric("policy_entropy", "nats", "mean entropy of the trained tokens", "policy/policy_entropy"),
    Metric("grad_norm", "norm", "gradient norm before clipping", "policy/grad_norm"),
    Metric("clip_ratio", "share", "trained tokens whose ratio was clipped", "policy/loss_metrics/clip_ratio"),
    Metric("learning_rate", "1", "learning rate of the step", "policy/policy_lr"),
    Metric(
        "logprob_gap_mean",
        "nats",
        "mean |log p(trainer) - log p(engine)| of sampled tokens",
        "policy/rollout_train_logprobs_abs_diff_mean",
    ),
    Metric(
        "logprob_gap_max",
        "nats",
        "largest |log p(trainer) - log p(engine)| of a sampled token",
        "policy/rollout_train_logprobs_abs_diff_max",
    ),
    Metric(
        "image_tokens_engine",
        "tokens",
        "image tokens in the engine's last request of each episode, summed",
        "skypod/image_tokens_engine",
    ),
    Metric(
        "image_tokens_trainer",
        "tokens",
        "image features that the trainer makes of the same episodes",
        "skypod/image_tokens_trainer",
    ),
    Metric("step_seconds", "s", "wall time of the step", "timing/step"),
    Metric("generate_seconds", "s", "rollouts", "timing/generate"),
    Metric("forward_seconds", "s", "log-probabilities of the batch", "timing/fwd_logprobs_values_reward"),
    Metric("update_seconds", "s", "policy update", "timing/train_critic_and_policy"),
    Metric("sync_seconds", "s", "adapter to the engines", "timing/sync_weights"),
    Metric("checkpoint_seconds", "s", "checkpoint", "timing/save_checkpoints"),
    Metric("evaluate_seconds", "s", "evaluation", "timing/eval"),
    Metric("tokens_per_second_per_gpu", "tokens/s", "trained tokens", "trainer/tokens_per_second_per_gpu"),
]
_DEV = [
    Metric("dev_solve_rate", "share", "dev mazes solved, greedy", "eval/dev/solve_rate"),
    Metric("dev_format_rate", "share", "valid turns on dev", "eval/dev/format_rate"),
]
METRICS: dict[str, Metric] = {metric.name: metric for metric in _STEP + _DEV}


def from_skyrl(logs: Mapping[str, object]) -> dict[str, float]:
    """Keep the metrics of the table that SkyRL's log of one step holds."""
    found = {}
    for metric in METRICS.values():
        value = logs.get(metric.skyrl_key) if metric.skyrl_key else None
        if isinstance(value, int | float) or hasattr(value, "__float__"):
            found[metric.name] = float(value)
    return found


def read(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics.jsonl in order of steps; after a resumed run the last word on a step counts."""
    # A line without its newline was cut off by a crash.
    rows = [json.loads(line) for line in path.read_text().split("\n")[:-1] if line]
    return [row for _, row in sorted({int(row["step"]): row for row in rows}.items())]
