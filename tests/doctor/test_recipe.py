"""The arithmetic of a recipe: parameters, GPU and host memory, topology, horizon, gate, contamination."""

import json
from dataclasses import replace

import pytest

from cdk_app import settings
from cdk_app.doctor import fit, gpu_memory, host_memory, shapes, task
from cdk_app.doctor.finding import Status, Unknown
from cdk_app.doctor.gpu_memory import GIB
from tests.doctor.conftest import RECIPES
from training import recipe as recipes
from training import splits
from training.audits.contamination import Contamination

OK, WARNING, FAILED, UNKNOWN = Status
SHAPE = shapes.KNOWN["visgym-mixed-qwen3vl"]
TINY = {
    "tie_word_embeddings": False,
    "text_config": {
        "num_hidden_layers": 3,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 32,
    },
    "vision_config": {
        "depth": 6,
        "hidden_size": 128,
        "intermediate_size": 256,
        "out_hidden_size": 128,
        "num_position_embeddings": 16,
        "in_channels": 3,
        "temporal_patch_size": 2,
        "patch_size": 16,
        "spatial_merge_size": 1,
        "deepstack_visual_indexes": [1],
    },
}


def changed(recipe: recipes.Recipe, **sections: dict) -> recipes.Recipe:
    parts = {name: getattr(recipe, name).model_copy(update=values) for name, values in sections.items()}
    return recipe.model_copy(update=parts)


def on(instance_type: str, gpus: int, count: int = 3):
    return settings.load(
        "paper",
        {
            "hyperpod.gpu.instance_type": instance_type,
            "hyperpod.gpu.gpus": gpus,
            "hyperpod.gpu.count": count,
        },
    )


def memory(environment, recipe, shape=SHAPE):
    return {f.check: f for f in fit.check_memory(environment, recipe, shape)}


def test_parameters_are_those_that_transformers_and_peft_count():
    """Counted with transformers 5.16.1 and peft 0.18.1 on models of these shapes, rank 32."""
    tiny = shapes.from_config(TINY)
    assert (SHAPE.parameters, SHAPE.vision.parameters) == (8_767_123_696, 576_388_336)
    assert (tiny.parameters, tiny.vision.parameters) == (1_511_872, 1_060_224)
    assert SHAPE.lora_parameters(32, ".*visual.*") == 87_293_952
    assert SHAPE.lora_parameters(32, "nothing") == 104_987_648
    assert tiny.lora_parameters(32, ".*visual.*") == 196_608
    assert tiny.lora_parameters(32, "nothing") == 524_288


def test_a_shape_is_read_from_the_model_or_the_table(tmp_path, recipe):
    assert shapes.find(recipe.policy.base_model, tmp_path) == SHAPE
    assert isinstance(shapes.find("models/other", tmp_path), Unknown)
    folder = tmp_path / "models" / "other"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    found = shapes.find("models/other", tmp_path)
    assert isinstance(found, Unknown)
    assert "not of a Qwen3-VL" in found.reason


def test_the_engine_keeps_what_weights_and_work_leave(recipe):
    needs = gpu_memory.rollout(recipe, SHAPE, 96.0)
    assert needs.token_bytes == 2 * 36 * 8 * 128 * 2
    assert needs.weights_gib == pytest.approx((8_767_123_696 + 87_293_952) * 2 / GIB)
    assert needs.kv_gib == pytest.approx(0.45 * 96 - needs.weights_gib - needs.work_gib)
    assert 150_000 < needs.tokens < 200_000


def test_training_peaks_with_the_longest_micro_batch(recipe):
    needs = gpu_memory.training(recipe, SHAPE)
    tokens = 4 * (8192 + 1024)
    assert needs.logits_gib == pytest.approx(3 * tokens * 151_936 * 2 / GIB)
    assert needs.shards_gib == pytest.approx((8_767_123_696 * 4 + 87_293_952 * 16) / 6 / GIB)
    half = gpu_memory.training(recipe, SHAPE, micro_batch=2)
    assert half.logits_gib == needs.logits_gib / 2
    assert half.shards_gib == needs.shards_gib


def test_the_paper_recipe_fits_the_paper_nodes(environment, recipe):
    assert {f.status for f in memory(environment, recipe).values()} == {OK}


def test_a_micro_batch_that_does_not_fit_is_told_one_that_does(environment, recipe):
    found = memory(environment, changed(recipe, optimization={"micro_batch_episodes": 10}))
    learn = found["GPU memory to learn"]
    assert learn.status is FAILED
    assert learn.remedy == "set optimization.micro_batch_episodes = 5"
    fixed = changed(recipe, optimization={"micro_batch_episodes": 5})
    assert memory(environment, fixed)["GPU memory to learn"].status is OK


def test_a_share_too_small_for_one_sequence_is_told_a_larger_one(environment, recipe):
    small = changed(recipe, rollout={"gpu_memory_utilization": 0.2})
    play = memory(environment, small)["GPU memory to play"]
    assert play.status is FAILED
    share = float(play.remedy.split()[3])
    enough = changed(recipe, rollout={"gpu_memory_utilization": share})
    assert memory(environment, enough)["GPU memory to play"].status is OK


def test_smaller_gpus_are_refused(recipe):
    assert memory(on("ml.g6.12xlarge", 4), recipe)["GPU memory to play"].status is FAILED
    assert memory(on("ml.g6e.12xlarge", 4), recipe)["GPU memory to learn"].status is FAILED


def test_a_worker_holds_sleeping_engines_shards_and_the_loading_model(environment, recipe):
    parts = host_memory.worker(recipe, SHAPE, environment.ray.worker).gib
    assert parts["sleeping engines"] == pytest.approx(2 * 8_767_123_696 * 2 / GIB)
    assert parts["shards"] == pytest.approx(2 * 8_767_123_696 * 4 / 6 / GIB)
    assert parts["object store"] == 64
    little = environment.ray.worker.model_copy(update={"memory_gib": 128})
    starved = environment.model_copy(update={"ray": environment.ray.model_copy(update={"worker": little})})
    found = memory(starved, recipe)["host memory of a worker"]
    assert found.status is FAILED
    assert "ray.worker.memory_gib" in found.remedy


def test_a_head_holds_the_pictures_of_a_step(recipe):
    assert host_memory.pictures_gib(recipe, SHAPE) == pytest.approx(240 * 20 * 256 * 1536 * 4 / GIB)


def test_an_unknown_model_leaves_memory_unknown(environment, recipe):
    found = memory(environment, recipe, Unknown("no config.json"))
    assert {f.status for f in found.values()} == {UNKNOWN}


def test_a_recipe_larger_than_the_environment_fails(recipe):
    gpus, batches, serving = fit.check_topology(settings.load("dev"), recipe)
    assert gpus.status is FAILED
    assert "20 episodes a GPU" in batches.found
    assert serving.status is WARNING
    room = fit.check_topology(on("ml.g7e.12xlarge", 2, count=4), recipe)
    assert [f.status for f in room] == [OK, OK, OK]


@pytest.fixture(scope="module")
def test_rows(recipe):
    return splits.evaluation_pool(recipe.environment.make()).test


def test_fifteen_turns_leave_a_fifth_of_the_test_out_of_reach(recipe, test_rows):
    assert task.check_horizon(recipe, test_rows).status is OK
    found = task.check_horizon(changed(recipe, environment={"max_turns": 15}), test_rows)
    assert found.status is WARNING
    assert "78.1%" in found.found
    assert found.needed == "17 turns for all"
    hopeless = changed(recipe, environment={"max_turns": 5})
    assert task.check_horizon(hopeless, test_rows).status is FAILED


def test_a_gate_that_no_policy_could_pass_fails(recipe, test_rows):
    on_test = changed(recipe, gate={"split": "test"})
    assert task.check_gate(on_test, test_rows).status is OK
    short = changed(on_test, environment={"max_turns": 15})
    found = task.check_gate(short, test_rows)
    assert found.status is FAILED
    assert "min_solve_rate" in found.found


def test_contamination_is_refused_and_an_undeclared_ancestry_is_warned_about():
    clean = Contamination((), True, "", "", ({"name": "x", "tasks": 1200, "generator": None},), ())
    assert task.check_contamination(clean).status is OK
    assert "1,200" in task.check_contamination(clean).found
    assert task.check_contamination(replace(clean, declared=False, why="no list")).status is WARNING
    dirty = replace(clean, faults=("2 of 64 rows of test were taught in 'x'",))
    assert task.check_contamination(dirty).status is FAILED


def test_a_changed_declaration_of_the_base_model_is_a_failure_not_the_end(tmp_path, recipe):
    folder = tmp_path / recipe.policy.base_model
    folder.mkdir(parents=True)
    stated = {"name": "x", "tasks": 1, "file": "ancestry-x.txt", "sha256": "0"}
    (folder / "ancestry.json").write_text(json.dumps({"declared": True, "data": [stated]}))
    found = {f.check: f for f in task.check(recipe, tmp_path)}
    assert found["contamination"].status is FAILED
    assert "ancestry-x.txt" in found["contamination"].found
    assert found["reward"].status is OK


@pytest.mark.parametrize("name", ["maze-smoke", "maze-rehearsal"])
def test_the_miniatures_fit_too(environment, name):
    recipe = recipes.load(RECIPES / f"{name}.toml")
    assert {f.status for f in memory(environment, recipe, shapes.from_config(TINY)).values()} == {OK}
