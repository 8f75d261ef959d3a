"""The LoRA adapter as an artifact: packaged deterministically, named by content, checked before any load.

A vLLM server answers 200 to adapters that do nothing (wrong names), compute something else (wrong rank) or
poison other requests (NaN). So nothing is handed to a server before `validate` has passed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serving import manifest, tensors
from serving.base import HEAD, Base, is_vision
from serving.manifest import CONFIG, MANIFEST, WEIGHTS, Adapter
from serving.peft_options import Options
from training.errors import DataError

__all__ = ["Adapter", "Base", "Limits", "package", "validate"]


@dataclass(frozen=True)
class Limits:
    """What a server takes: ranks up to its maximum, a size, and LoRA on the vision tower or not."""

    max_rank: int = 64
    max_bytes: int = manifest.MAX_WEIGHTS_BYTES
    allow_vision: bool = False


def package(
    source: Path,
    out: Path,
    *,
    base_dir: Path,
    run_id: str,
    evaluation_digest: str,
    licence: str = "Apache-2.0",
    prefix: str = "maze",
    limits: Limits | None = None,
) -> Adapter:
    """Turn the trainer's export into the folder `out/<name>` of three files, named by their content.

    `source` holds adapter_model.safetensors and adapter_config.json as PEFT writes them, `base_dir` is the
    checkpoint that was trained on. Equal weights and options on an equal base have one name, whatever run
    made them; a folder of that name that is there already stays, with the lineage that it has.
    Raises DataError for everything that `validate` would refuse, of `source` and of such a folder.
    """
    limits = limits or Limits()
    base = Base.read(base_dir)
    weights = tensors.parse(manifest.read_file(source / WEIGHTS, limits.max_bytes), str(source / WEIGHTS))
    options = Options.parse(
        manifest.read_file(source / CONFIG, manifest.MAX_JSON_BYTES), str(source / CONFIG)
    )
    _check_weights(weights, options, base, limits, str(source))
    options = options.canonical(base)
    contents = {WEIGHTS: tensors.serialize(weights), CONFIG: options.to_json()}
    adapter = Adapter(
        base_digest=base.digest,
        rank=options.rank,
        alpha=options.alpha,
        targets=tuple(options.target),
        parameters=_parameters(weights),
        lineage={"run_id": run_id, "evaluation_digest": evaluation_digest, "licence": licence},
        files={name: manifest.sha256(content) for name, content in contents.items()},
    ).named(prefix)
    directory = out / adapter.name
    if not directory.exists():
        manifest.write_folder(directory, {**contents, MANIFEST: adapter.encode()})
    try:
        return validate(directory, base, limits)
    except DataError as error:  # of the folder that was there: its content has passed above
        again = f"move {directory} away and give the same command again, which writes it anew"
        raise DataError(error.problem, again) from None


def validate(directory: Path, base: Base, limits: Limits | None = None) -> Adapter:
    """Check a packaged adapter against the base and the server; raises DataError with the reason."""
    limits = limits or Limits()
    adapter, contents = manifest.read_folder(directory, limits.max_bytes)
    if adapter.base_digest != base.digest:
        raise DataError(
            f"{adapter.name} was trained on base {adapter.base_digest}, the deployed base is {base.digest}",
            "serve the base that it was trained on, or train again on this one",
        )
    options = Options.parse(contents[CONFIG], str(directory / CONFIG))
    # Patterns end in the packager: a hostile regular expression can run for hours.
    if isinstance(options.target, str) or options.exclude is not None:
        raise DataError(
            f"{directory / CONFIG} gives its targets as a pattern",
            "package the adapter again, which spells them out",
        )
    if (options.rank, options.alpha, tuple(options.target)) != (adapter.rank, adapter.alpha, adapter.targets):
        raise DataError(f"{directory}: {CONFIG} and {MANIFEST} disagree on rank, alpha or targets")
    weights = tensors.parse(contents[WEIGHTS], str(directory / WEIGHTS))
    _check_weights(weights, options, base, limits, str(directory))
    if adapter.parameters != _parameters(weights):
        raise DataError(
            f"{directory}: {MANIFEST} tells of {adapter.parameters} parameters, there are "
            f"{_parameters(weights)}",
            "package the adapter again",
        )
    return adapter


def _parameters(weights: Mapping[str, tensors.Tensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in weights.values())


def _check_weights(
    weights: Mapping[str, tensors.Tensor], options: Options, base: Base, limits: Limits, source: str
) -> None:
    if options.rank > limits.max_rank:
        raise DataError(
            f"{source}: rank {options.rank} exceeds the server's maximum of {limits.max_rank}",
            f"train with rank {limits.max_rank} or less, or raise the server's max_lora_rank",
        )
    modules = options.modules(base)
    if HEAD in modules:
        raise DataError(
            f"{source}: the output head ({HEAD}) carries LoRA, which no test has shown a server to apply",
            "leave it out of target_modules; all-linear does",
        )
    vision = [module for module in modules if is_vision(module)]
    if vision and not limits.allow_vision:
        raise DataError(
            f"{source}: {len(vision)} vision layers carry LoRA ({vision[0]}, ...), which the server ignores",
            "exclude them in training (exclude_modules), or switch on the server's tower LoRA",
        )
    shapes: dict[str, tuple[int, int]] = {}
    for module in modules:
        inputs, outputs = base.linears[module]
        shapes[f"base_model.model.{module}.lora_A.weight"] = (options.rank, inputs)
        shapes[f"base_model.model.{module}.lora_B.weight"] = (outputs, options.rank)
    missing, unexpected = sorted(shapes.keys() - weights.keys()), sorted(weights.keys() - shapes.keys())
    if missing or unexpected:
        raise DataError(
            f"{source}: {len(missing)} expected tensors are missing ({', '.join(missing[:2]) or 'none'}), "
            f"{len(unexpected)} are not expected ({', '.join(unexpected[:2]) or 'none'})",
            "the names must be those that PEFT gives on this base; check base and target_modules",
        )
    for name, shape in shapes.items():
        tensor = weights[name]
        if tensor.shape != shape:
            raise DataError(
                f"{source}: {name} has shape {tensor.shape}, expected {shape} at rank {options.rank}",
                "the rank in adapter_config.json or the base is not the one that was trained",
            )
        if not tensor.finite():
            raise DataError(
                f"{source}: {name} holds infinite or NaN values", "the run diverged; take an earlier step"
            )
