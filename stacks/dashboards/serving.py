"""The served model: load, latency and cache of the vLLM replicas behind Ray Serve."""

from stacks.dashboards.model import Panel, Query, Row, Variable

VARIABLES = (Variable("model", "ray_vllm_num_requests_running", "model_name"),)

_ON = '{model_name=~"$model"}'


def rows() -> list[Row]:
    return [
        Row(
            "Requests",
            [
                Panel(
                    "In work and waiting",
                    "none",
                    (
                        Query("running", f"sum(ray_vllm_num_requests_running{_ON})"),
                        Query("waiting", f"sum(ray_vllm_num_requests_waiting{_ON})"),
                    ),
                ),
                Panel(
                    "Finished",
                    "reqps",
                    (
                        Query(
                            "{{finished_reason}}",
                            f"sum by (finished_reason) (rate(ray_vllm_request_success_total{_ON}[5m]))",
                        ),
                    ),
                ),
                Panel(
                    "Calls per deployment",
                    "reqps",
                    (
                        Query(
                            "{{deployment}}",
                            "sum by (deployment) (rate(ray_serve_deployment_request_counter_total[5m]))",
                        ),
                    ),
                ),
            ],
        ),
        Row(
            "Latency",
            [
                _latency("Time to the first token", "ray_vllm_time_to_first_token_seconds_bucket"),
                _latency("Time per token", "ray_vllm_request_time_per_output_token_seconds_bucket"),
            ],
        ),
        Row(
            "Engine",
            [
                Panel(
                    "Tokens",
                    "none",
                    (
                        Query("read", f"sum(rate(ray_vllm_prompt_tokens_total{_ON}[5m]))"),
                        Query("written", f"sum(rate(ray_vllm_generation_tokens_total{_ON}[5m]))"),
                    ),
                    "Per second",
                ),
                Panel(
                    "KV cache used",
                    "percentunit",
                    (Query("{{WorkerId}}", f"ray_vllm_kv_cache_usage_perc{_ON}"),),
                    maximum=1,
                ),
                Panel(
                    "Prefix cache hits",
                    "percentunit",
                    (
                        Query(
                            "share of tokens",
                            f"sum(rate(ray_vllm_prefix_cache_hits_total{_ON}[5m]))"
                            f" / sum(rate(ray_vllm_prefix_cache_queries_total{_ON}[5m]))",
                        ),
                    ),
                    maximum=1,
                ),
            ],
        ),
    ]


def _latency(title: str, buckets: str) -> Panel:
    return Panel(
        title,
        "s",
        tuple(
            Query(f"{share:.0%}", f"histogram_quantile({share}, sum by (le) (rate({buckets}{_ON}[5m])))")
            for share in (0.5, 0.95)
        ),
    )
