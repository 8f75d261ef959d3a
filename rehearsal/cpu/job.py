"""The entrypoint of a training job on a laptop: `python -m rehearsal.cpu.job RUN_DIR [TOKEN]`."""

from rehearsal.cpu.skyrl_workers import CpuPolicyRank  # isort: skip - patches SkyRL before it is used

import sys
from pathlib import Path

from training import run
from training.skyrl.backend import Backend

_ENGINE = {
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

CPU = Backend(
    name="cpu",
    trainer_overrides={
        "trainer.flash_attn": False,
        "trainer.use_expandable_segments": False,
        "trainer.gradient_checkpointing": False,
        "trainer.enable_ray_gpu_monitor": False,
        "trainer.policy.fsdp_config.mixed_precision.param_dtype": "fp32",
        "trainer.policy.fsdp_config.mixed_precision.reduce_dtype": "fp32",
        "trainer.policy.fsdp_config.mixed_precision.buffer_dtype": "fp32",
        "generator.inference_engine.enable_ray_prometheus_stats": False,
        "generator.inference_engine.distributed_executor_backend": "mp",
    },
    engine_arguments={
        "enforce_eager": True,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "block_size": 32,
        "disable_log_stats": True,
    },
    engine_environment=_ENGINE,
    engines_start_beside_models=True,
    server_overrides={
        "generator.inference_engine.enforce_eager": True,
        **{
            f"generator.inference_engine.engine_init_kwargs.{key}": value
            for key, value in {
                "worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker",
                "enable_sleep_mode": False,
                "weight_transfer_config": None,
                "kv_cache_memory_bytes": 128 * 2**20,
                "limit_mm_per_prompt": {"image": 20, "video": 0},
                "max_num_seqs": 128,
                "max_cpu_loras": 2,
            }.items()
        },
    },
    server_setup="rehearsal.cpu.loopback.bind_skyrl_servers",
    server_executor="uni",
    policy_rank=CpuPolicyRank,
)

if __name__ == "__main__":
    run.main(Path(sys.argv[1]), CPU, *map(int, sys.argv[2:]))
