"""From a RayService's LLM configuration to the command line of a vLLM server on CPU."""

from __future__ import annotations

import json
from typing import Any

import yaml

from rehearsal.kube.adapters import LocalAdapter

Object = dict[str, Any]
# Engine settings that speak of GPUs, or that a small CPU server decides itself.
_DROPPED = (
    "block_size",
    "data_parallel_size",
    "distributed_executor_backend",
    "dtype",
    "enable_lora",
    "enforce_eager",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "max_cpu_loras",
    "max_loras",
    "max_num_seqs",
    "mm_encoder_tp_mode",
    "pipeline_parallel_size",
    "swap_space",
    "tensor_parallel_size",
)
_KV_CACHE_BYTES = 128 * 1024**2
_MOST_IMAGES = 32


class ServeConfigError(Exception):
    """A serveConfigV2 that this controller can't serve; the message says why."""


def llm_config(service: Object) -> tuple[str, Object]:
    """(application name, its only LLM configuration) of a RayService. Raises ServeConfigError."""
    try:
        config = yaml.safe_load(service["spec"].get("serveConfigV2") or "")
    except yaml.YAMLError as error:
        raise ServeConfigError(f"serveConfigV2 is not YAML: {error}") from error
    applications = (config or {}).get("applications") or []
    if len(applications) != 1:
        raise ServeConfigError(f"serveConfigV2 has {len(applications)} applications; one is served here")
    application = applications[0]
    if application.get("import_path") != "ray.serve.llm:build_openai_app":
        raise ServeConfigError(
            f"import_path {application.get('import_path')!r}: only ray.serve.llm:build_openai_app is served"
        )
    configs = (application.get("args") or {}).get("llm_configs") or []
    if len(configs) != 1 or not isinstance(configs[0], dict):
        raise ServeConfigError(f"{len(configs)} llm_configs; one, written out, is served here")
    loading = configs[0].get("model_loading_config") or {}
    for key in ("model_id", "model_source"):
        if not loading.get(key):
            raise ServeConfigError(f"model_loading_config.{key} is missing")
    return application.get("name", "default"), configs[0]


def command(config: Object, adapters: list[LocalAdapter], port: int) -> list[str]:
    """The server's command. `adapters` must fit the configuration's max_lora_rank."""
    loading = config["model_loading_config"]
    engine = config.get("engine_kwargs") or {}
    arguments: Object = {
        "model": loading["model_source"],
        "served-model-name": loading["model_id"],
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "enforce-eager": True,
        "kv-cache-memory-bytes": _KV_CACHE_BYTES,
        "distributed-executor-backend": "uni",
        "max-num-seqs": 64,
        "limit-mm-per-prompt": {"image": _MOST_IMAGES, "video": 0},
    }
    for key, value in engine.items():
        if key not in _DROPPED and value is not None:
            arguments[key.replace("_", "-")] = value
    if engine.get("enable_lora"):
        most = int((config.get("lora_config") or {}).get("max_num_adapters_per_replica") or 1)
        # One slot more than named adapters: vLLM's CPU kernels give base requests the last slot's weights.
        arguments |= {"enable-lora": True, "max-loras": min(most, len(adapters) or 1) + 1}
        arguments["max-cpu-loras"] = max(most, len(adapters), arguments["max-loras"])
    line = ["python", "-m", "vllm.entrypoints.openai.api_server"]
    for key, value in arguments.items():
        if isinstance(value, bool):
            line.append(f"--{key}" if value else f"--no-{key}")
        else:
            line.append(f"--{key}={json.dumps(value) if isinstance(value, dict | list) else value}")
    if adapters:
        line += ["--lora-modules", *(f"{loading['model_id']}:{a.name}={a.folder}" for a in adapters)]
    return line
