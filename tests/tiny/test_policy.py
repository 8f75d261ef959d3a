import numpy as np
import pytest
import torch
from PIL import Image

from rehearsal.tiny import boards, demonstrators, layout, learn, model, vision
from rehearsal.tiny import play as board_play
from rehearsal.tiny import tokenizer as words
from training import render, splits

CLOSE = 1e-5


@pytest.fixture(scope="module")
def policy():
    return model.initialize(1).eval()


@pytest.fixture(scope="module")
def board():
    return boards.test().take(np.arange(6))


@pytest.fixture(scope="module")
def processor(tmp_path_factory, policy):
    from transformers import AutoProcessor

    folder = tmp_path_factory.mktemp("tiny")
    model.save(policy, folder)
    return AutoProcessor.from_pretrained(folder)


@pytest.fixture
def stock_vision(monkeypatch):
    """Undo `vision.install` after a test."""
    for owner in (vision.stock.Qwen3VLVisionAttention, vision.stock.Qwen3VLVisionPatchEmbed):
        monkeypatch.setattr(owner, "forward", owner.forward)


def pictures(board, cells):
    rows = splits.evaluation_pool(boards.ENVIRONMENT).test[: len(board)]
    squares = [(2 * (int(c) // 4) + 1, 2 * (int(c) % 4) + 1) for c in cells]
    return [Image.fromarray(render.draw(splits.row_task(r), s)) for r, s in zip(rows, squares, strict=True)]


def stock_inputs(processor, images):
    out = processor.image_processor(images=images, return_tensors="pt")
    return out["pixel_values"], out["image_grid_thw"]


def test_tiles_and_images_give_the_same_features(policy, board, processor):
    pixels, grid = stock_inputs(processor, pictures(board, board.start))
    assert grid.tolist() == [[1, 4, 4]] * len(board)
    with torch.no_grad():
        expected = policy.model.visual(pixels, grid_thw=grid)
        numbers = torch.from_numpy(boards.atlas.codes(board, board.start))
        features, deepstack = vision.encode(policy.model.visual, boards.patches(), numbers, board.side)
    assert (features - expected.pooler_output).abs().max() < CLOSE
    assert (deepstack[0] - expected.deepstack_features[0]).abs().max() < CLOSE


def test_installed_vision_equals_stock_with_gradients(policy, board, processor, stock_vision):
    pixels, grid = stock_inputs(processor, pictures(board, board.start))

    def run():
        policy.zero_grad()
        features = policy.model.visual(pixels, grid_thw=grid).pooler_output
        features.square().sum().backward()
        weight = policy.model.visual.patch_embed.proj.weight.grad.clone()
        return features.detach(), weight / weight.abs().max()

    stock = run()
    vision.install()
    fast = run()
    policy.zero_grad()
    assert all((a - b).abs().max() < CLOSE for a, b in zip(stock, fast, strict=True))


def test_installed_vision_refuses_mixed_sizes(policy, stock_vision):
    vision.install()
    with pytest.raises(ValueError, match="different sizes"):
        policy.model.visual(torch.zeros(16 + 4, 1536), grid_thw=torch.tensor([[1, 4, 4], [1, 2, 2]]))


def test_learned_logits_are_those_of_the_stock_model_on_rendered_text(policy, board, processor):
    rng = np.random.default_rng(0)
    games = demonstrators.play(board, demonstrators.Habits(), 0.3, 4, rng)
    with torch.no_grad():
        learned = learn.answer_logits(policy, boards.patches(), games, 4)
    cells, images = board.start.copy(), []
    for turn in range(games.actions.shape[1]):
        images.append(pictures(board, cells))
        cells = board.moved(cells, games.actions[:, turn])
    for game in range(len(board)):
        turns = int((games.wanted[game] >= 0).sum())
        messages = []
        for turn in range(turns):
            messages.append({"role": "user", "content": [{"type": "image"}]})
            answer = words.ACTION_TEXTS[games.actions[game, turn]]
            messages.append({"role": "assistant", "content": answer})
        text = processor.apply_chat_template(messages, tokenize=False)
        seen = [images[turn][game] for turn in range(turns)]
        inputs = processor(text=[text], images=seen, return_tensors="pt")
        with torch.no_grad():
            logits = policy(**inputs).logits[0]
        places = layout.answer_starts(4, turns)[:, None] + np.arange(layout.ANSWER_LENGTH)
        assert (logits[places] - learned[game, :turns]).abs().max() < 1e-4


def test_cached_play_picks_what_one_forward_prefers(policy, board):
    played = board_play.play(policy, boards.patches(), board, 4)
    assert played.actions.shape[0] == len(board)
    first = np.maximum(played.actions[:, :1], 0)
    games = demonstrators.Games(boards.atlas.codes(board, board.start)[:, None], first, first)
    with torch.no_grad():
        logits = learn.answer_logits(policy, boards.patches(), games, 4)[:, 0, 0]
    banned = torch.ones(len(words.VOCABULARY), dtype=bool)
    banned[words.allowed_token_ids()] = False
    verbs = logits.masked_fill(banned, float("-inf")).argmax(-1).numpy()
    well_formed = played.actions[:, 0] >= 0
    assert (layout.answers()[first[:, 0], 0] == verbs)[well_formed].all()


def test_positions_are_those_of_the_stock_model(policy):
    ids = torch.from_numpy(layout.conversations(np.array([[0, 3, 4]]), 4))
    expected, _ = policy.model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == words.token_id(words.IMAGE)).int(),
        image_grid_thw=torch.tensor([[1, 4, 4]] * 3),
    )
    assert (expected[:, 0].numpy() == layout.positions(4, 3)).all()


def test_labels_ask_for_the_wanted_answer_only_after_its_own_prefix():
    given, wanted = np.array([0, 4, 2, 1]), np.array([0, 1, -1, 3])
    labels = layout.answer_labels(given, wanted)
    assert labels[0].tolist() == words.answer_ids(0)
    assert labels[1].tolist() == [words.answer_ids(1)[0], layout.IGNORED, layout.IGNORED]
    assert labels[2].tolist() == [layout.IGNORED] * 3
    assert labels[3].tolist() == words.answer_ids(3)


def test_a_stage_that_was_stopped_ends_like_one_that_was_not(tmp_path, policy):
    def run(folder, stops):
        torch.manual_seed(3)
        module = torch.nn.Linear(4, 1)

        def loss_of(rng):
            rows = torch.from_numpy(rng.normal(size=(8, 4))).float()
            return (module(rows) - rows.sum(1, keepdim=True)).square().mean()

        def on_progress(step, loss):
            if step in stops:
                raise KeyboardInterrupt

        folder.mkdir(exist_ok=True)
        for _ in range(len(stops) + 1):
            try:
                learn.minimize(
                    loss_of,
                    [module],
                    learn.Schedule(3 * learn.EVERY, 0.05),
                    seeds=(1,),
                    state_file=folder / "state.pt",
                    on_progress=on_progress,
                )
            except KeyboardInterrupt:
                stops = stops[1:]
                torch.manual_seed(99)
                module = torch.nn.Linear(4, 1)
        return module.weight.detach()

    assert torch.equal(run(tmp_path / "whole", []), run(tmp_path / "parts", [learn.EVERY, 2 * learn.EVERY]))
