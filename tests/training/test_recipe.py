"""Recipes: what is accepted, and how each mistake is explained."""

from pathlib import Path

import pytest

from training import recipe
from training.errors import ConfigError

FOLDER = Path(__file__).resolve().parents[2] / "recipes"
SMOKE = FOLDER / "maze-smoke.toml"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_is_valid_and_named_like_its_file(path):
    assert recipe.load(path).name == path.stem


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_but_the_drills_uses_the_papers_topology(path):
    chosen = recipe.load(path)
    if path.stem == "maze-drill":
        assert chosen.topology.ranks == 2  # the fewest that can fail apart
        return
    assert (chosen.topology.worker_nodes, chosen.topology.gpus_per_node, chosen.topology.ranks) == (3, 2, 6)


@pytest.mark.parametrize("name", ["smoke", "maze-smoke", str(SMOKE)])
def test_a_recipe_is_found_by_name_or_path(name):
    assert recipe.find(name, FOLDER) == SMOKE


def test_an_absent_recipe_lists_those_there_are():
    with pytest.raises(ConfigError, match=r"maze-smokey\.toml does not exist") as error:
        recipe.load(recipe.find("maze-smokey", FOLDER))
    assert "maze-smoke.toml" in error.value.remedy


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rollout.temprature", 1.0, "did you mean 'temperature'"),
        ("rolout.temperature", 1.0, "did you mean 'rollout'"),
        ("seed", -1, r"seed = -1: .*greater than or equal to 0"),
        ("rollout.temperature", 3.0, r"rollout.temperature = 3.0: .*less than or equal to 2"),
        ("rollout.samples_per_maze", 1, r"samples_per_maze = 1: .*greater than or equal to 2"),
        ("policy.dtype", "float64", r"policy.dtype = 'float64': .*'float32' or 'bfloat16'"),
        ("optimization.steps", "two", r"optimization.steps = 'two'"),
        ("data.train_mazes", 4, "less than one step of 12 mazes"),
        ("rollout.engines", 7, "more than the 6 GPUs"),
        ("rollout.engine", "skyrl-servers", r"rollout.engines = 1: .* set it to 6"),
        ("rollout.max_model_len_tokens", 512, "exceeds max_model_len_tokens = 512"),
        ("optimization.mazes_per_step", 13, "not a multiple of mini_batch_mazes = 6"),
        (
            "optimization.micro_batch_episodes",
            7,
            r"does not divide the 8 episodes of a rank; use one of \[1, 2, 4, 8\]",
        ),
    ],
)
def test_each_mistake_is_named_with_its_value(key, value, said):
    with pytest.raises(ConfigError, match=said):
        recipe.load(SMOKE, {key: value})


def test_batches_that_skyrl_accepts_and_then_dies_of_are_refused():
    """SkyRL divides 16 x 8 episodes by 6 ranks with rounding, and asserts after the first rollout."""
    with pytest.raises(ConfigError, match=r"cannot be divided among 6 ranks; .*\[15, 18\]|\[12, 15, 18\]"):
        recipe.load(
            SMOKE,
            {
                "optimization.mazes_per_step": 32,
                "optimization.mini_batch_mazes": 16,
                "data.train_mazes": 64,
            },
        )


def test_all_mistakes_of_a_file_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        recipe.load(SMOKE, {"seed": -1, "rollout.engine": "magic", "policy.lora_rank": 0})
    assert all(key in error.value.problem for key in ("seed", "rollout.engine", "policy.lora_rank"))


def test_a_resolved_recipe_reads_back_equal(tmp_path):
    chosen = recipe.load(SMOKE)
    recipe.write_resolved(chosen, tmp_path / "recipe.json")
    assert recipe.read_resolved(tmp_path / "recipe.json") == chosen


def test_a_recipe_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        recipe.load(SMOKE).seed = 1


def test_broken_toml_names_the_file(tmp_path):
    (tmp_path / "x.toml").write_text("seed = = 1\n")
    with pytest.raises(ConfigError, match=r"x\.toml is not valid TOML"):
        recipe.load(tmp_path / "x.toml")
