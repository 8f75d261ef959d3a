"""Alert rules for Managed Prometheus, built from the table of metrics that the trainer emits."""

from typing import Any

import yaml

from stacks.dashboards.emitted import EMITTED, metric
from stacks.dashboards.promql import checked
from stacks.environment import Observability


def rule_groups(settings: Observability) -> str:
    """The rule groups file (YAML)."""
    stalled = f"{settings.stalled_after_minutes}m"
    groups = {
        "hardware": [
            _rule("GpuFault", "max by (instance, gpu) (DCGM_FI_DEV_XID_ERRORS) > 0", "1m", "critical",
                  "GPU {{ $labels.gpu }} of {{ $labels.instance }} reports Xid error {{ $value }}"),
            _rule("GpuHot", "max by (instance, gpu) (DCGM_FI_DEV_GPU_TEMP) > 88", "10m", "warning",
                  "GPU {{ $labels.gpu }} of {{ $labels.instance }} is at {{ $value }} C"),
            _rule("NodeMemoryLow",
                  "node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes < 0.05", "5m", "critical",
                  "{{ $labels.instance }} has less than 5 % of its memory left; the head's end is the run's"),
            _rule("NodeDiskFull",
                  'node_filesystem_avail_bytes{fstype=~"ext4|xfs"}'
                  ' / node_filesystem_size_bytes{fstype=~"ext4|xfs"} < 0.1', "5m", "warning",
                  "{{ $labels.mountpoint }} of {{ $labels.instance }} is nearly full; pods will be evicted"),
        ],
        "cost": [
            _rule("GpusIdle", "avg(avg_over_time(DCGM_FI_DEV_GPU_UTIL[2h])) < 5", "15m", "warning",
                  "the GPUs have done nothing for two hours; they are paid for by the hour"),
        ],
        "training": [
            _rule("TrainingStalled",
                  f"changes({metric('step_seconds')}[{stalled}]) == 0", "5m", "critical",
                  f"no training step has ended for {stalled}"),
            _rule("EngineDisagrees", f"{metric('logprob_gap_mean')} > 0.1", "1m", "warning",
                  "trainer and rollout engine differ by {{ $value }} nats per token on average"),
            _rule("FormatLost", f"{metric('train_format_rate')} < 0.5", "30m", "warning",
                  "only {{ $value }} of the turns hold a valid action"),
        ],
    }  # fmt: skip
    return yaml.safe_dump(
        {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}, sort_keys=False
    )


def alert_manager(region: str, topic_arn: str) -> str:
    """The alert manager definition (YAML) that sends every alert to one SNS topic."""
    config = {
        "route": {
            "receiver": "topic",
            "group_by": ["alertname"],
            "group_wait": "30s",
            "repeat_interval": "4h",
        },
        "receivers": [
            {
                "name": "topic",
                "sns_configs": [
                    {
                        "topic_arn": topic_arn,
                        "sigv4": {"region": region},
                        "subject": "{{ .CommonLabels.alertname }}",
                        "send_resolved": True,
                    }
                ],
            }
        ],
    }
    return yaml.safe_dump({"alertmanager_config": yaml.safe_dump(config, sort_keys=False)})


def _rule(name: str, expression: str, held_for: str, severity: str, summary: str) -> dict[str, Any]:
    """Raises ValueError when the expression asks for a metric that nobody emits."""
    return {
        "alert": name,
        "expr": checked(expression, EMITTED),
        "for": held_for,
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }
