"""What every environment has to keep to: each that is registered, and the one of the how-to page."""

import importlib
import json
import random
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.training import visgym_contract
from tests.training.test_visgym import install
from training import recipe, reward, splits
from training.audits import reward as reward_audit
from training.environments import ENVIRONMENTS, Game, named
from training.environments.base import BIGGER, PLAIN, RECOLOURED
from training.errors import ConfigError, DataError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-an-environment.md"
VARIANTS = (PLAIN, BIGGER, RECOLOURED)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def page_module(tmp_path_factory):
    """The page's environment as a module of its own."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "taller_of_the_page.py").write_text(blocks("python")[0])
    sys.path.insert(0, str(folder))
    yield importlib.import_module("taller_of_the_page")
    sys.path.remove(str(folder))
    del sys.modules["taller_of_the_page"]


@pytest.fixture(params=[*ENVIRONMENTS, "taller"])
def environment(request, monkeypatch, page_module):
    monkeypatch.setitem(ENVIRONMENTS, "taller", f"{page_module.__name__}:Taller")
    if request.param == "maze-visgym":
        install(monkeypatch, visgym_contract)
    return named(request.param)


def drawn(environment, count=8):
    return [
        environment.draw(random.Random(f"{variant} {seed}"), variant)
        for variant in VARIANTS
        for seed in range(count)
    ]


def test_tasks_are_data_and_follow_from_their_seed(environment):
    tasks = drawn(environment)
    assert [environment.load(json.loads(json.dumps(task.to_json()))) for task in tasks] == tasks
    assert drawn(environment) == tasks
    assert len({task.digest for task in tasks}) > len(tasks) // 2


@pytest.mark.parametrize(
    "data", [None, {}, [], "task", {"grid": 3}, {"rows": [], "kind": "o", "palette": "visgym"}]
)
def test_what_is_no_task_is_refused(environment, data):
    with pytest.raises(DataError) as refused:
        environment.load(data)
    assert refused.value.remedy


def test_digests_know_a_task_in_the_mirror(environment):
    for task in drawn(environment):
        twin = environment.mirrored(task)
        assert twin.canonical_digest == task.canonical_digest
        assert twin.canonical_layout_digest == task.canonical_layout_digest
        assert environment.mirrored(twin) == task
    plain = [environment.draw(random.Random(seed)) for seed in range(40)]
    assert any(environment.mirrored(task).digest != task.digest for task in plain)


def test_digests_of_many_draws_are_those_of_each(environment):
    seeds = [f"seed {n}" for n in range(5)]
    tasks = [environment.draw(random.Random(seed)) for seed in seeds]
    assert [tuple(found) for found in environment.draw_digests(seeds)] == [
        (task.digest, task.layout_digest, task.canonical_digest, task.canonical_layout_digest)
        for task in tasks
    ]


def test_an_oracle_takes_the_optimal_turns_and_no_fewer(environment):
    for task in drawn(environment, 3):
        game = Game(environment, task, max_turns=100)
        while not game.done:
            assert not game.solved
            assert game.act(game.best_action()).valid
        assert game.solved
        assert game.turns == environment.optimal_turns(task)


def test_pictures_are_of_the_right_kind_and_change_only_by_actions(environment):
    for task in drawn(environment, 2):
        world = environment.world(task)
        image = world.observe().image
        before = image.copy()
        assert (str(image.dtype), image.ndim, image.shape[2]) == ("uint8", 3, 3)
        if environment.name != "maze-visgym":
            assert image.shape[0] % 32 == image.shape[1] % 32 == 0
        assert (world.observe().image == image).all()
        world.act(world.best_action())
        world.observe()
        assert (image == before).all(), "a picture that was shown has to stay as it was"


def test_recoloured_tasks_look_different(environment):
    def colours(variant):
        image = environment.world(environment.draw(random.Random(0), variant)).observe().image
        return {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()}

    assert colours(PLAIN) != colours(RECOLOURED)


def test_actions_count_only_where_the_protocol_puts_them(environment):
    assert len(set(environment.actions)) == len(environment.actions) > 1
    for action in environment.actions:
        for answer in (action, f"<action>{action}</action>", f"well <action> {action}\n</action><|im_end|>"):
            assert environment.parse(answer) == action
        for answer in (
            f"I say {action}",
            f"{action} {action}",
            f"<action>{action}",
            f"`{action}`",
            f"{action}.",
        ):
            assert environment.parse(answer) is None
    stuffed = " ".join(environment.actions)
    for answer in ("", " \n<|im_end|>", stuffed, f"<action>{stuffed}</action>", "x" * 100_000):
        assert environment.parse(answer) is None


@pytest.mark.parametrize("answer", ["", "I am thinking about it. " * 5000])
def test_a_policy_that_answers_nothing_for_ever_ends_unsolved(environment, answer):
    game = Game(environment, environment.draw(random.Random(0)), max_turns=3)
    outcomes = [game.act(answer) for _ in range(3)]
    assert [(outcome.done, outcome.valid) for outcome in outcomes] == [(False, False)] * 2 + [(True, False)]
    result = game.result()
    assert (result.solved, result.score, result.format_ok) == (False, 0.0, 0.0)
    assert all(len(kept) <= 200 for kept in result.malformed)


def test_replays_need_nothing_but_the_record(environment):
    for task in drawn(environment, 2):
        played, replayed = Game(environment, task, 100), Game(environment, task, 100, replay=True)
        while not played.done:
            action = played.best_action()
            assert played.act(action) == replayed.act(action)
        assert played.result() == replayed.result()


def test_splits_are_disjoint_and_the_reward_holds(environment):
    turns = max(environment.optimal_turns(task) for task in drawn(environment, 4)[:4])
    built = splits.build(environment, 0, splits.Sizes(train=20, dev=10, test_512=20, ood=9), max_turns=turns)
    assert [len(rows) for _, rows in built] == [20, 10, 64, 20, 9]
    tasks = sorted(map(splits.row_task, built.dev), key=environment.optimal_turns)[:1]
    assert reward_audit.audit(environment, reward.named("solve-format-v1"), tasks, turns).faults == ()


def test_the_page_names_what_is_there(page_module, monkeypatch):
    entry = blocks("python")[1]
    name, _, where = entry.strip().rstrip(",").partition(": ")
    assert where.strip('"') == "training.environments.taller:Taller"
    monkeypatch.setitem(ENVIRONMENTS, name.strip('"'), f"{page_module.__name__}:Taller")
    (section,) = blocks("toml")
    chosen = recipe.Environment(**tomllib.loads(section)["environment"])
    assert chosen.make() == page_module.Taller(least=4)
    with pytest.raises(ConfigError, match="no option 'most'"):
        named("taller", most=3)
    with pytest.raises(DataError, match="neither is taller"):
        page_module.Bars(3, 3)
