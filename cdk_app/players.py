"""Makes the policies that `skypod evaluate` plays with, under the rules that the run's recipe gives them."""

import reprlib
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from cdk_app import candidates
from cdk_app.candidates import Candidate
from serving.client import ChatPolicy
from serving.endpoint import Endpoint
from serving.local import LocalPolicy
from serving.probe import TOLERANCES
from training.errors import ConfigError, DataError
from training.evaluate import EvaluationSettings, Policy
from training.files import read_object, required
from training.recipe import Recipe


def endpoint(
    run: Path,
    address: str,
    recipe: Recipe,
    settings: EvaluationSettings,
    timeout_s: float,
    stack: ExitStack,
) -> tuple[Candidate, Callable[[], Policy]]:
    """A model behind URL[#MODEL]: who it is, and what makes the player. SubstrateError if it does not answer.

    ConfigError when no model is named and the server has several, and by the player's maker when the server
    has none of that name: both before it is asked anything.
    """
    url, _, model = address.partition("#")
    if not model:
        model = _only(url, _served(url, timeout_s))

    def policy(temperature: float) -> ChatPolicy:
        return stack.enter_context(
            ChatPolicy(
                url,
                model,
                max_tokens=recipe.rollout.max_new_tokens,
                allowed_token_ids=allowed_token_ids(run, recipe),
                temperature=temperature,
                seed=settings.seed,
                timeout_s=timeout_s,
            )
        )

    def make() -> ChatPolicy:
        if model not in (found := _served(url, timeout_s)):
            others = ", ".join(found) or "nothing"
            raise ConfigError(f"{url} serves no {model!r}, but {others}", "name one of these: URL#MODEL")
        return policy(settings.temperature)

    candidate = candidates.endpoint(run, policy(0.0), settings, TOLERANCES[recipe.policy.dtype])
    return candidate, make


def _served(url: str, timeout_s: float) -> list[str]:
    with closing(Endpoint(url, timeout_s=timeout_s)) as server:
        return server.models()


def _only(url: str, found: list[str]) -> str:
    if len(found) != 1:
        raise ConfigError(f"{url} serves {', '.join(found) or 'nothing'}", "name one: URL#MODEL")
    return found[0]


def local(
    run: Path,
    base_dir: Path,
    folder: Path | None,
    recipe: Recipe,
    settings: EvaluationSettings,
    stack: ExitStack,
) -> tuple[Candidate, Callable[[], Policy]]:
    """The run's base from disk, with an adapter or without: who it is, and what makes the player.

    DataError when base or adapter are not what they have to be; the player itself needs the libraries.
    """
    if not (base_dir / "config.json").is_file():
        raise ConfigError(
            f"there is no base model in {base_dir}", "name the folder it is relative to: --shared"
        )
    candidate, packaged = candidates.base(run, base_dir), None
    if folder is not None:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        candidate, packaged = candidates.adapter(run, folder, base_dir, scratch)

    def make() -> LocalPolicy:
        return LocalPolicy(
            base_dir,
            packaged,
            dtype=recipe.policy.dtype,
            max_tokens=recipe.rollout.max_new_tokens,
            allowed_token_ids=allowed_token_ids(run, recipe),
            temperature=settings.temperature,
            seed=settings.seed,
        )

    return candidate, make


def allowed_token_ids(run: Path, recipe: Recipe) -> list[int] | None:
    """The token ids that the trainer's engines may sample; None for all. DataError where its training did not
    note them so."""
    if not recipe.rollout.text_tokens_only:
        return None
    path = run / "generation.json"
    if not path.is_file():
        raise DataError(f"{run} holds no {path.name}, which its training writes", "start the run first")
    found = required(read_object(path), list, "allowed_token_ids", source=path)
    if not found or not all(type(one) is int and one >= 0 for one in found):
        raise DataError(
            f"{path}: allowed_token_ids is {reprlib.repr(found)}, no list of token ids",
            "restore the file as it was written",
        )
    return found
