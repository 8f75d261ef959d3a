"""The run's own dashboard, built from the table of metrics that the trainer emits."""

from stacks.dashboards.emitted import metric
from stacks.dashboards.model import Panel, Query, Row, Variable
from training.metrics import METRICS

VARIABLES = (Variable("run", metric("step_seconds"), "run"),)

# Grafana's names of our units; a unit that is not here is shown as a plain number.
_UNITS = {"share": "percentunit", "s": "s", "tokens/s": "short"}

_ROWS: tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...] = (
    (
        "Does it learn?",
        (
            ("Mazes solved", ("dev_solve_rate", "train_solve_rate")),
            ("Reward", ("reward_mean",)),
            ("Valid actions", ("dev_format_rate", "train_format_rate")),
            ("Groups that teach nothing", ("zero_variance_groups",)),
            ("Spread of rewards in a group", ("reward_std_in_group",)),
            ("Turns per episode", ("train_turns",)),
        ),
    ),
    (
        "Is the update healthy?",
        (
            ("Entropy", ("policy_entropy",)),
            ("Gap between trainer and engine", ("logprob_gap_mean", "logprob_gap_max")),
            ("Image tokens of engine and trainer", ("image_tokens_engine", "image_tokens_trainer")),
            ("Gradient norm", ("grad_norm",)),
            ("Tokens clipped", ("clip_ratio",)),
            ("Policy loss", ("policy_loss",)),
            ("Learning rate", ("learning_rate",)),
        ),
    ),
    (
        "Where does the time go?",
        (
            (
                "A step and its parts",
                (
                    "step_seconds",
                    "generate_seconds",
                    "forward_seconds",
                    "update_seconds",
                    "sync_seconds",
                    "checkpoint_seconds",
                    "evaluate_seconds",
                ),
            ),
            ("Throughput per GPU", ("tokens_per_second_per_gpu",)),
        ),
    ),
)


def rows() -> list[Row]:
    """All metrics of the table: those with a place above, then whatever else the trainer emits."""
    made = [
        Row(title, [_panel(panel, names) for panel, names in panels if _known(names)])
        for title, panels in _ROWS
    ]
    placed = {name for _, panels in _ROWS for _, names in panels for name in names}
    rest = [name for name in METRICS if name not in placed]
    if rest:
        made.append(Row("Further metrics", [_panel(name.replace("_", " "), (name,)) for name in rest]))
    return made


def _known(names: tuple[str, ...]) -> bool:
    missing = [name for name in names if name not in METRICS]
    if missing:
        raise ValueError(f"the training dashboard shows {', '.join(missing)}, which no run emits")
    return True


def _panel(title: str, names: tuple[str, ...]) -> Panel:
    unit = METRICS[names[0]].unit
    several = len(names) > 1
    return Panel(
        title,
        _UNITS.get(unit, "none"),
        tuple(
            Query(
                f"{name} {{{{run}}}}" if several else "{{run}}",
                f'max by (run) ({metric(name)}{{run=~"$run"}})',
            )
            for name in names
        ),
        description="; ".join(f"{name}: {METRICS[name].meaning} ({METRICS[name].unit})" for name in names),
        maximum=1 if unit == "share" else None,
    )
