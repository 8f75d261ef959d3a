"""Rewards that pay for anything but solving are caught, and so is a parser that can be talked into it."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from cdk_app.audit import audit_reward
from training import environments, recipe
from training.audits import reward as audits
from training.audits.adversaries import BABBLE, CAST
from training.environments.maze import MazeEnvironment, MazeWorld
from training.errors import ConfigError, DataError
from training.protocol import parse
from training.reward import REWARDS, Reward, named

TURNS = 10
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def maze():
    return MazeEnvironment(squares_per_move=2)


@pytest.fixture(scope="module")
def tasks(maze):
    return audits.fixed_tasks(maze)[:6]


@pytest.fixture
def audit(maze, tasks):
    """The audit of a reward that is given as what it pays; by default it may pay from 0 to 1."""

    def of(pays, lowest=0.0, highest=1.0):
        return audits.audit(maze, Reward("mine", "a trial", lowest, highest, pays), tasks, TURNS)

    return of


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("recipe_name", ["maze-6gpu", "maze-rehearsal"])
def test_every_named_reward_pays_for_solving_alone(reward, recipe_name):
    env = recipe.load(RECIPES / f"{recipe_name}.toml").environment
    found = audits.audit(env.make(), named(reward), audits.fixed_tasks(env.make())[:8], env.max_turns)
    assert found.faults == ()
    solvers = {one.adversary for one in found.earned if one.solved}
    assert solvers >= {"oracle", "slow oracle", "sloppy oracle"}
    assert found.earned[0].score == 1.0
    assert found.earned[0].solved == 1.0


def test_who_may_not_solve_does_not_and_the_play_is_the_same_every_time(maze, tasks):
    first, second = (audits.audit(maze, named("solve-format-v1"), tasks, TURNS) for _ in range(2))
    assert first == second
    by_name = {one.adversary: one for one in first.earned}
    assert by_name.keys() == {adversary.name for adversary in CAST}
    assert all(by_name[a.name].solved == 0 for a in CAST if not a.may_solve)
    assert by_name["stop-spammer"].turns == 1
    assert by_name["never moves"].turns == by_name["silent"].turns == by_name["babbler"].turns == TURNS
    assert by_name["never moves"].format_ok == by_name["goal-shy"].format_ok == 1
    assert (
        by_name["quotes"].format_ok == by_name["stuffs tags"].format_ok == by_name["babbler"].format_ok == 0
    )
    assert by_name["sloppy oracle"].format_ok < by_name["oracle"].format_ok == 1


def test_the_stock_rule_of_passing_calls_a_policy_passed_that_never_solves(maze, tasks):
    """SkyRL's `pass_at_1` counts a last reward above 0; the stock recipe pays 0.8 solved + 0.2 format."""
    found = audits.audit(maze, named("solve-format-v1"), tasks, TURNS)
    never = next(one for one in found.earned if one.adversary == "never moves")
    assert (never.solved, never.paid) == (0, 1)
    assert "never moves" in found.never_solved_but_paid
    assert "silent" not in found.never_solved_but_paid
    assert found.to_json()["never_solved_but_paid"] == list(found.never_solved_but_paid)


def test_a_reward_that_pays_format_above_solving_is_caught(audit):
    found = audit(lambda played: 0.3 * played.solved + 0.7 * played.format_ok)
    assert not found.passed
    assert any(fault.startswith("episodes: ") and "'sloppy oracle'" in fault for fault in found.faults)
    with pytest.raises(DataError, match="without solving it"):
        found.require()


@pytest.mark.parametrize(
    ("pays", "fault"),
    [
        (lambda played: 0.5, "episodes"),
        (lambda played: 1.0 - played.solved, "episodes"),
        (lambda played: played.turns / 10 - 0.1 * played.solved, "episodes"),
        (lambda played: 0.5 * played.solved + (0.5 if played.turns == 1 else 0.0), "episodes"),
        # Solving is paid more in every single episode, but stopping at once is the better policy.
        (lambda played: 0.5 if played.solved else 0.4 * (played.turns == 1), "policies"),
        (lambda played: 2.0 * played.solved, "bounds"),
        (lambda played: played.solved - 0.1, "bounds"),
        (lambda played: math.nan if played.turns == 1 else float(played.solved), "bounds"),
    ],
)
def test_other_ways_to_be_paid_are_caught(audit, pays, fault):
    assert fault in {text.split(":")[0] for text in audit(pays).faults}


@dataclass(frozen=True)
class Lenient(MazeEnvironment):
    """Reads the last tuple anywhere in an answer, which a reasoning that quotes one can use."""

    def parse(self, answer):
        tuples = re.findall(r"\([^()]*\)", answer)
        return parse(tuples[-1]) if tuples else None


def test_a_parser_that_takes_quoted_actions_is_caught(tasks):
    found = audits.audit(Lenient(squares_per_move=2), named("solve-format-v1"), tasks, TURNS)
    caught = {fault for fault in found.faults if fault.startswith("world")}
    assert {re.search("'(.*)'", fault)[1] for fault in caught} == {"quotes", "stuffs tags", "stuffs tuples"}


def test_turns_in_which_nobody_can_solve_are_an_error(maze, tasks):
    with pytest.raises(DataError, match="no adversary, the oracle included"):
        audits.audit(maze, named("solve-format-v1"), tasks, 3)


class InPlace(MazeWorld):
    """Keeps its state where a copy of it changes it too."""

    def __init__(self, maze, stride):
        self.state = {}
        super().__init__(maze, stride)

    position = property(lambda self: self.state["at"], lambda self, at: self.state.update(at=at))


@dataclass(frozen=True)
class Entangled(MazeEnvironment):
    def world(self, task):
        return InPlace(task, self.squares_per_move)


def test_a_world_that_cannot_be_tried_in_a_copy_is_an_error(tasks):
    with pytest.raises(DataError, match="changed by playing a copy"):
        audits.audit(Entangled(squares_per_move=2), named("solve-format-v1"), tasks, TURNS)


def test_the_command_prints_and_says_no_by_its_exit_code(monkeypatch):
    monkeypatch.setattr(audits, "TASKS", 4)
    said = CliRunner().invoke(audit_reward, ["--recipe", "smoke", "--json"])
    assert said.exit_code == 0
    report = json.loads(said.stdout)
    assert report["passed"] is True
    assert [one["score"] for one in report["earned"]] == sorted(
        (one["score"] for one in report["earned"]), reverse=True
    )
    bad = Reward("format-only", "the share of well-formed turns", 0, 1, lambda played: played.format_ok)
    monkeypatch.setitem(REWARDS, bad.name, bad)
    said = CliRunner().invoke(audit_reward, ["--environment", "maze", "--reward", bad.name])
    assert said.exit_code == 1
    assert "✗ episodes: " in said.stdout
    assert str(BABBLE)[:2] in said.stdout


@pytest.mark.parametrize("wrong", [[], ["--recipe", "smoke", "--environment", "maze"]])
def test_the_command_wants_to_know_what(wrong):
    said = CliRunner().invoke(audit_reward, wrong)
    assert isinstance(said.exception, ConfigError)
    with pytest.raises(ConfigError, match="'maze'"):
        environments.named("maize")
