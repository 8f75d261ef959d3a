"""Ray itself: whether its nodes, actors and object store are well."""

from stacks.dashboards.model import Panel, Query, Row, Variable

VARIABLES = (Variable("cluster", "ray_node_cpu_utilization", "ray_io_cluster"),)

_ON = '{ray_io_cluster=~"$cluster"}'


def rows() -> list[Row]:
    return [
        Row(
            "Work",
            [
                Panel("Actors", "none", (Query("{{State}}", f"sum by (State) (ray_actors{_ON})"),)),
                Panel("Tasks", "none", (Query("{{State}}", f"sum by (State) (ray_tasks{_ON})"),)),
                Panel(
                    "Workers lost",
                    "none",
                    (
                        Query(
                            "for lack of memory",
                            f"sum(increase(ray_memory_manager_worker_eviction_total{_ON}[15m]))",
                        ),
                        Query(
                            "unexpectedly",
                            f"sum(increase(ray_node_manager_unexpected_worker_failure_total{_ON}[15m]))",
                        ),
                    ),
                    "Within 15 minutes; a lost worker ends a run, which continues from its last checkpoint",
                ),
            ],
        ),
        Row(
            "Nodes as Ray sees them",
            [
                Panel(
                    "CPUs busy",
                    "percent",
                    (Query("{{instance}}", f"ray_node_cpu_utilization{_ON}"),),
                    maximum=100,
                ),
                Panel(
                    "Memory used",
                    "percentunit",
                    (Query("{{instance}}", f"ray_node_mem_used_host{_ON} / ray_node_mem_total_host{_ON}"),),
                    maximum=1,
                ),
                Panel(
                    "GPUs busy",
                    "percent",
                    (Query("{{instance}} GPU {{GpuIndex}}", f"ray_node_gpus_utilization{_ON}"),),
                    maximum=100,
                ),
                Panel(
                    "GPU memory used",
                    "decmbytes",
                    (Query("{{instance}} GPU {{GpuIndex}}", f"ray_node_gram_used{_ON}"),),
                ),
                Panel(
                    "Object store",
                    "bytes",
                    (
                        Query(
                            "{{instance}} {{Location}}",
                            f"sum by (instance, Location) (ray_object_store_memory{_ON})",
                        ),
                    ),
                ),
            ],
        ),
    ]
