"""What the rollouts of one step say about the health of training, before the update is made.

Keys are those that `training.metrics` maps to names.
"""

from collections.abc import Sequence
from statistics import fmean, pstdev

from training.errors import DataError

SAME = 1e-6
"""Rewards of a group that differ by no more are equal: GRPO then gives the group no advantage."""


def groups(uids: Sequence[str], rewards: Sequence[float]) -> dict[str, float]:
    """Scale of the rewards within GRPO groups; `uids` names the group of each episode.

    A group of zero variance teaches nothing, whatever its mean; the standard deviation is what GRPO divides
    advantages by (population form, mean over groups).
    """
    members: dict[str, list[float]] = {}
    for uid, reward in zip(uids, rewards, strict=True):
        members.setdefault(uid, []).append(reward)
    flat = [max(found) - min(found) <= SAME for found in members.values()]
    return {
        "skypod/zero_variance_groups": fmean(flat),
        "skypod/reward_std_in_group": fmean(pstdev(found) for found in members.values()),
    }


def same_image_tokens(
    asked: Sequence[int], trained: Sequence[int], features: Sequence[int], cut: Sequence[bool]
) -> dict[str, float]:
    """Counts of image tokens per episode, which must be equal: what the engine was asked with last, what the
    trainer's sequences hold, and how many image features the trainer's vision tower will make.

    `cut` marks episodes that were ended because they grew too long: the engine never saw their last picture.
    Raises DataError with the first episode that differs: the policy would be trained on other pictures, or
    other places of them, than it acted on.
    """
    for index, (engine, sequence, made, short) in enumerate(zip(asked, trained, features, cut, strict=True)):
        if made != sequence or not (engine <= sequence if short else engine == sequence):
            raise DataError(
                f"episode {index} of the step: the engine saw {engine} image tokens, the trainer's sequence "
                f"holds {sequence} and its pictures make {made}",
                "engine and trainer prepare images differently: compare their image processors and sizes",
            )
    return {
        "skypod/image_tokens_engine": float(sum(asked)),
        "skypod/image_tokens_trainer": float(sum(features)),
    }
