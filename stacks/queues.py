"""How a workload joins its team's queue when task governance is on."""

from stacks.environment import Environment

PRIORITIES = {"serving": 100, "training": 75, "trial": 50}
"""Priority classes by name and weight, 100 being the first served."""


def queue_labels(environment: Environment, priority: str) -> dict[str, str]:
    """Labels for the Ray object and for each of its pod templates; none without task governance.

    Kueue admits a Ray cluster by its own labels, but leaves it suspended when its pods lack them.
    """
    if not environment.governance.enabled:
        return {}
    if priority not in PRIORITIES:
        raise ValueError(f"priority {priority!r} is none of {', '.join(PRIORITIES)}")
    return {
        "kueue.x-k8s.io/queue-name": f"{environment.namespace}-localqueue",
        "kueue.x-k8s.io/priority-class": f"{priority}-priority",
    }
