"""GPUs and nodes: what the run costs and what may end it. Lustre reports to CloudWatch, not here."""

from stacks.dashboards.model import Panel, Query, Row, Variable

VARIABLES = (Variable("instance", "node_memory_MemTotal_bytes", "instance"),)

_ON = '{instance=~"$instance"}'
_DISKS = '{instance=~"$instance",fstype=~"ext4|xfs"}'


def rows() -> list[Row]:
    return [
        Row(
            "GPUs",
            [
                Panel(
                    "Busy",
                    "percent",
                    (Query("{{Hostname}} GPU {{gpu}}", "DCGM_FI_DEV_GPU_UTIL"),),
                    "Share of time in which a kernel ran; below 5 % for two hours raises GpusIdle",
                    maximum=100,
                ),
                Panel(
                    "Memory",
                    "percentunit",
                    (
                        Query(
                            "{{Hostname}} GPU {{gpu}}",
                            "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
                        ),
                    ),
                    maximum=1,
                ),
                Panel("Temperature", "celsius", (Query("{{Hostname}} GPU {{gpu}}", "DCGM_FI_DEV_GPU_TEMP"),)),
                Panel("Power", "watt", (Query("{{Hostname}} GPU {{gpu}}", "DCGM_FI_DEV_POWER_USAGE"),)),
                Panel(
                    "Xid errors",
                    "none",
                    (Query("{{Hostname}} GPU {{gpu}}", "DCGM_FI_DEV_XID_ERRORS"),),
                    "Number of the driver's last error; 0 is none",
                ),
            ],
        ),
        Row(
            "Nodes",
            [
                Panel(
                    "Memory left",
                    "percentunit",
                    (
                        Query(
                            "{{instance}}",
                            f"node_memory_MemAvailable_bytes{_ON} / node_memory_MemTotal_bytes{_ON}",
                        ),
                    ),
                    maximum=1,
                ),
                Panel(
                    "CPUs busy",
                    "percentunit",
                    (
                        Query(
                            "{{instance}}",
                            "1 - avg by (instance) "
                            '(rate(node_cpu_seconds_total{instance=~"$instance",mode="idle"}[5m]))',
                        ),
                    ),
                    maximum=1,
                ),
                Panel(
                    "Disk left",
                    "percentunit",
                    (
                        Query(
                            "{{instance}} {{mountpoint}}",
                            f"node_filesystem_avail_bytes{_DISKS} / node_filesystem_size_bytes{_DISKS}",
                        ),
                    ),
                    maximum=1,
                ),
                Panel(
                    "Network",
                    "Bps",
                    (
                        Query(
                            "{{instance}} in",
                            f"sum by (instance) (rate(node_network_receive_bytes_total{_ON}[5m]))",
                        ),
                        Query(
                            "{{instance}} out",
                            f"sum by (instance) (rate(node_network_transmit_bytes_total{_ON}[5m]))",
                        ),
                    ),
                ),
            ],
        ),
    ]
