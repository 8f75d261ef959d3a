from pathlib import Path

import pytest

from rehearsal.drills import plan
from rehearsal.drills.command import drill as command
from rehearsal.drills.faults import BOUNDARY, FAULTS, PHASES
from training import recipe
from training.errors import ConfigError

RECIPE = recipe.load(Path(__file__).resolve().parents[2] / "recipes" / "maze-drill.toml")


def drawn(kills: int = 30, seed: int = 0) -> list[list[plan.Strike]]:
    return plan.draw(RECIPE, kills, seed, tuple(FAULTS))


def test_a_seed_draws_one_campaign():
    assert drawn(seed=3) == drawn(seed=3)
    assert drawn(seed=3) != drawn(seed=4)


@pytest.mark.parametrize("seed", range(20))
def test_thirty_faults_are_of_every_kind_and_strike_where_they_can(seed):
    runs = drawn(30, seed)
    strikes = [strike for run in runs for strike in run]
    assert len(strikes) == 30
    assert {strike.fault for strike in strikes} == set(FAULTS)
    assert {strike.phase for strike in strikes} >= set(PHASES)
    assert all(strike.phase in FAULTS[strike.fault].phases for strike in strikes)
    for run in runs:
        steps = [strike.step for strike in run]
        assert steps == sorted(set(steps)), (
            "each attempt gets a step further, so none looks like a crash loop"
        )
        late = {s.step for s in run if s.phase in ("checkpoint", "sync", BOUNDARY)}
        assert not {step + 1 for step in late} & set(steps), (
            "the first step after a recovery has to end, or nothing shows that there was one"
        )
    assert all(strike.step % 3 == 0 for strike in strikes if strike.phase == BOUNDARY)
    assert all(strike.step % 4 == 0 for strike in strikes if strike.phase == "evaluation")
    damaging = [strike for strike in strikes if FAULTS[strike.fault].may_lose]
    assert all(strike.step >= 3 for strike in damaging), (
        "the checkpoint before the damaged one has to be there"
    )


def test_every_phase_of_a_fault_comes_before_one_comes_again():
    phases = [strike.phase for run in plan.draw(RECIPE, 5, 1, ["rank"]) for strike in run]
    assert sorted(phases) == sorted(PHASES)


def test_what_the_machine_lacks_is_left_out_by_name():
    names, without = plan.possible(["full disk", "driver"], {"disk": "needs root"})
    assert (names, without) == (["driver"], {"full disk": "needs root"})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plan.possible(["drivr"], {}), "there is no fault 'drivr'"),
        (lambda: plan.possible(["full disk"], {"disk": "needs root"}), "full disk: needs root"),
        (
            lambda: plan.draw(_with({"checkpoints.every_steps": 2}), 1, 0, ["driver"]),
            "checkpoints.every_steps = 2",
        ),
        (lambda: command.main(["--perform", "--fault", "none"], standalone_mode=False), "--on-cluster"),
        (lambda: plan.draw(_with({"optimization.steps": 2}), 1, 0, ["torn checkpoint"]), "no step of 2"),
    ],
)
def test_what_cannot_be_drilled_is_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


def _with(overrides: dict) -> recipe.Recipe:
    return recipe.load(Path(__file__).resolve().parents[2] / "recipes" / "maze-drill.toml", overrides)
