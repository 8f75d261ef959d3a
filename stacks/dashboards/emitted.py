"""Every metric that a panel or an alert may ask for: our own, and those of others with their source."""

from dataclasses import dataclass

from training.metrics import METRICS

DCGM = "NVIDIA dcgm-exporter, scraped by the HyperPod observability add-on (acceleratedComputeMetrics)"
NODE = "Prometheus node exporter, scraped by the HyperPod observability add-on (nodeMetrics)"
RAY = "Ray 2.57, scraped by the HyperPod observability add-on (rayMetrics)"
VLLM = "vLLM inside Ray Serve, which puts ray_ before its names and writes _ for :; scraped like Ray's own"


@dataclass(frozen=True)
class Foreign:
    """A metric that is not ours: where it comes from, and its unit."""

    source: str
    unit: str


FOREIGN: dict[str, Foreign] = {
    "DCGM_FI_DEV_GPU_UTIL": Foreign(DCGM, "percent"),
    "DCGM_FI_DEV_FB_USED": Foreign(DCGM, "MiB"),
    "DCGM_FI_DEV_FB_FREE": Foreign(DCGM, "MiB"),
    "DCGM_FI_DEV_GPU_TEMP": Foreign(DCGM, "C"),
    "DCGM_FI_DEV_POWER_USAGE": Foreign(DCGM, "W"),
    "DCGM_FI_DEV_XID_ERRORS": Foreign(DCGM, "code of the last error"),
    "node_cpu_seconds_total": Foreign(NODE, "s"),
    "node_memory_MemAvailable_bytes": Foreign(NODE, "bytes"),
    "node_memory_MemTotal_bytes": Foreign(NODE, "bytes"),
    "node_filesystem_avail_bytes": Foreign(NODE, "bytes"),
    "node_filesystem_size_bytes": Foreign(NODE, "bytes"),
    "node_network_receive_bytes_total": Foreign(NODE, "bytes"),
    "node_network_transmit_bytes_total": Foreign(NODE, "bytes"),
    "ray_node_cpu_utilization": Foreign(RAY, "percent"),
    "ray_node_mem_used_host": Foreign(RAY, "bytes"),
    "ray_node_mem_total_host": Foreign(RAY, "bytes"),
    "ray_node_gpus_utilization": Foreign(RAY, "percent"),
    "ray_node_gram_used": Foreign(RAY, "MiB"),
    "ray_object_store_memory": Foreign(RAY, "bytes"),
    "ray_actors": Foreign(RAY, "actors"),
    "ray_tasks": Foreign(RAY, "tasks"),
    "ray_memory_manager_worker_eviction_total": Foreign(RAY, "workers"),
    "ray_node_manager_unexpected_worker_failure_total": Foreign(RAY, "workers"),
    "ray_serve_deployment_request_counter_total": Foreign(RAY, "requests"),
    "ray_vllm_num_requests_running": Foreign(VLLM, "requests"),
    "ray_vllm_num_requests_waiting": Foreign(VLLM, "requests"),
    "ray_vllm_kv_cache_usage_perc": Foreign(VLLM, "share"),
    "ray_vllm_prefix_cache_hits_total": Foreign(VLLM, "tokens"),
    "ray_vllm_prefix_cache_queries_total": Foreign(VLLM, "tokens"),
    "ray_vllm_prompt_tokens_total": Foreign(VLLM, "tokens"),
    "ray_vllm_generation_tokens_total": Foreign(VLLM, "tokens"),
    "ray_vllm_request_success_total": Foreign(VLLM, "requests"),
    "ray_vllm_time_to_first_token_seconds_bucket": Foreign(VLLM, "s"),
    "ray_vllm_request_time_per_output_token_seconds_bucket": Foreign(VLLM, "s"),
}

EMITTED = frozenset(metric.prometheus for metric in METRICS.values()) | FOREIGN.keys()


def metric(name: str) -> str:
    """The Prometheus name of one of our metrics. Raises KeyError when nobody emits it."""
    return METRICS[name].prometheus
