"""Whether the thresholds of a gate can be met at all, asked before anything is spent on a run."""

from training.errors import ConfigError
from training.recipe import Gate
from training.statistics import clopper_pearson, paired_difference


def check_attainable(gate: Gate, ceiling: float, tasks: int) -> None:
    """ConfigError when an oracle that solves the share `ceiling` of the split's `tasks` would be refused.

    Its interval begins below the ceiling, so some thresholds under the ceiling are out of reach as well; more
    tasks bring the two together.
    """
    solvable, level = round(ceiling * tasks), 1 - gate.alpha
    best_rate, _ = clopper_pearson(solvable, tasks, level)
    best_gain, _ = paired_difference(solvable, 0, tasks, level)
    for name, threshold, best, met in (
        ("min_solve_rate", gate.min_solve_rate, best_rate, best_rate >= gate.min_solve_rate),
        ("min_gain", gate.min_gain, best_gain, best_gain > gate.min_gain),
    ):
        if not met:
            raise ConfigError(
                f"gate.{name} = {threshold:g} cannot be met on {gate.split}: {solvable} of {tasks} tasks can "
                f"be solved in the turns allowed (ceiling {ceiling:.1%}), and the {level:.1%} interval of an "
                f"oracle begins at {best:.1%}",
                f"lower it below {best:.3f}, allow more turns (environment.max_turns), or use more tasks",
            )
