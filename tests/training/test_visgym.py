"""The maze inside VisGym: against its recorded behaviour, and against VisGym itself where that is."""

import json
import random
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from tests.training import visgym_contract
from training.environments import Game, named
from training.environments.visgym import MODULE
from training.errors import SubstrateError
from training.evaluate import EvaluationSettings, play, read_records
from training.mazes import generate, published
from training.protocol import ACTIONS, STOP
from training.render import PALETTES, image_data_url

VISGYM, OURS = named("maze-visgym"), named("maze")
MAZES = published("easy")


def install(monkeypatch, content) -> None:
    """Puts a module where VisGym's would be, and the packages above it."""
    parts = MODULE.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    monkeypatch.setitem(sys.modules, MODULE, content)


@pytest.fixture(params=["recorded", "installed"])
def visgym(request, monkeypatch):
    """The class as recorded, then VisGym's own."""
    if request.param == "recorded":
        install(monkeypatch, visgym_contract)
        return visgym_contract.Maze2DEnv
    module = pytest.importorskip(MODULE, reason="VisGym is not importable here", exc_type=ImportError)
    return module.Maze2DEnv


def test_the_class_behaves_as_recorded(visgym):
    assert visgym_contract.observe(visgym) == json.loads(visgym_contract.RECORDED.read_text())


def test_games_go_as_by_our_own_rules(visgym):
    """Steps, effects, ends and outcomes of walks, so that records can be replayed without VisGym."""
    for index, maze in enumerate([*MAZES[:12], *published("hard")[:4], generate(0, (3, 6))]):
        walk = random.Random(index)
        theirs, ours = Game(VISGYM, maze, 40), Game(OURS, maze, 40)
        while not ours.done:
            assert theirs.best_action() == ours.best_action()
            action = walk.choice(ACTIONS) if index % 3 else ours.best_action()
            assert theirs.act(action) == ours.act(action)
            assert theirs.world.position == ours.world.position
        assert theirs.done
        assert theirs.result() == ours.result()
        assert theirs.solved or index % 3


def test_the_first_words_are_the_prompt_and_how_to_answer(visgym):
    game = Game(VISGYM, MAZES[0], 9)
    shown = game.observation()
    assert shown.image.shape == (225, 225, 3)
    assert "9x9" in shown.text
    assert shown.text.startswith(visgym(maze_width=9, maze_height=9).get_prompt())
    assert "<action>" in shown.text
    game.act("('move', 3)")
    wall = game.observation().text
    game.act("I would go `('move', 0)`")
    assert game.observation().text == VISGYM.reminder
    game.act("('move', 0)")
    moved = game.observation().text
    assert len({shown.text, wall, VISGYM.reminder, moved}) == 4


def test_standing_on_the_target_solves_nothing_before_the_stop(visgym):
    game = Game(VISGYM, MAZES[0], 40)
    while (action := game.best_action()) != STOP:
        game.act(action)
    assert not game.solved
    assert not game.done
    assert game.act(STOP).done
    assert game.solved
    game = Game(VISGYM, MAZES[0], 40)
    assert game.act(STOP).done
    assert not game.solved


def test_a_recoloured_maze_is_shown_in_its_colours(visgym):
    image = Game(VISGYM, replace(MAZES[0], palette="dusk"), 9).observation().image
    colours = PALETTES["dusk"]
    found = {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()}
    assert found == {colours.wall, colours.floor, colours.goal, colours.agent}
    assert image_data_url(image).startswith("data:image/png")


def test_words_go_with_every_picture_and_records_are_read_without_visgym(visgym, tmp_path, monkeypatch):
    seen = []

    class Bumps:
        def act(self, conversations):
            seen.extend(conversation.messages() for conversation in conversations)
            return ["hm" if len(c.turns) == 1 else "('move', 3)" for c in conversations]

    path = tmp_path / "a.jsonl"
    records = play(Bumps(), MAZES[:1], EvaluationSettings(VISGYM, 3), records_path=path)
    chat = seen[-1]
    assert [message["role"] for message in chat] == ["user", "assistant", "user", "assistant", "user"]
    words = [message["content"][0]["text"] for message in chat[::2]]
    assert words[2] == VISGYM.reminder
    assert chat[:3] == seen[1]
    assert all(part["type"] == "image_url" for message in chat[::2] for part in message["content"][1:])
    monkeypatch.setitem(sys.modules, MODULE, None)
    assert read_records(path) == records


def test_without_visgym_playing_says_what_to_do(monkeypatch):
    for name in (MODULE, MODULE.split(".")[0]):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SubstrateError, match="VisGym cannot be imported") as refused:
        Game(VISGYM, MAZES[0], 9)
    assert "0289034" in refused.value.remedy
    assert "PYTHONPATH" in refused.value.remedy


def test_another_gymnasium_is_not_taken_for_visgym(monkeypatch):
    install(monkeypatch, ModuleType(MODULE))
    with pytest.raises(SubstrateError, match="Maze2DEnv"):
        Game(VISGYM, MAZES[0], 9)

    class Older:
        def __init__(self, maze_width, maze_height):
            pass

        def reset(self, seed=None):
            pass

    module = ModuleType(MODULE)
    module.Maze2DEnv = Older
    install(monkeypatch, module)
    with pytest.raises(SubstrateError, match="init_state"):
        Game(VISGYM, MAZES[0], 9)
