"""The player that loads from disk answers as the model itself does, conversation by conversation."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoProcessor

from rehearsal.tiny import model
from rehearsal.tiny import tokenizer as words
from serving import adapter as adapters
from serving.local import LocalPolicy
from training.environments import named
from training.errors import DataError
from training.evaluate import Conversation, EvaluationSettings, Turn, opening
from training.mazes import published

SETTINGS = EvaluationSettings(named("maze", squares_per_move=2), max_turns=10)
TOKENS = 4


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other spin, which costs more than they give to a model this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    model.save(model.initialize(3), folder)
    return folder


@pytest.fixture(scope="module")
def adapted(base_dir, tmp_path_factory):
    """A packaged adapter that matters, and the base with it merged in."""
    folder = tmp_path_factory.mktemp("adapter")
    options = LoraConfig(
        r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    policy = get_peft_model(model.initialize(3), options)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.3, generator=draw)
    policy.save_pretrained(folder / "export")
    name = adapters.package(
        folder / "export", folder, base_dir=base_dir, run_id="r", evaluation_digest=""
    ).name
    return folder / name, policy.merge_and_unload().eval()


@pytest.fixture(scope="module")
def asked():
    """Conversations of one, two and three turns, some with answers that are no actions."""
    conversations = opening(published("easy")[:6], SETTINGS)
    for number, conversation in enumerate(conversations):
        said = ("('move', 0)", "", "('stop'")[: number % 3]
        conversation.turns += [Turn(conversation.image, text) for text in said]
    return conversations


def alone(policy, base_dir, conversation: Conversation) -> str:
    """The greedy answer, computed one token at a time without padding, batch or cache."""
    processor = AutoProcessor.from_pretrained(base_dir)
    text = processor.tokenizer.apply_chat_template(
        conversation.messages(), add_generation_prompt=True, tokenize=False
    )
    given = processor(text=[text], images=conversation.images, return_tensors="pt")
    ids, answer = given.pop("input_ids"), []
    while len(answer) < TOKENS:
        types = {"mm_token_type_ids": (ids == 5).int()} if "mm_token_type_ids" in given else {}
        given |= {"attention_mask": torch.ones_like(ids), **types}
        with torch.no_grad():
            scores = policy(input_ids=ids, **given).logits[0, -1]
        allowed = words.allowed_token_ids()
        answer.append(allowed[int(scores[allowed].argmax())])
        if answer[-1] == processor.tokenizer.eos_token_id:
            break
        ids = torch.cat([ids, torch.tensor([[answer[-1]]])], 1)
    return processor.tokenizer.decode(answer, skip_special_tokens=True)


def local(base_dir, adapter=None, **chosen):
    return LocalPolicy(
        base_dir, adapter, max_tokens=TOKENS, allowed_token_ids=words.allowed_token_ids(), **chosen
    )


def test_greedy_answers_are_those_of_the_model(base_dir, adapted, asked):
    packaged, merged = adapted
    base = model.initialize(3).eval()
    without, with_adapter = local(base_dir).act(asked), local(base_dir, packaged).act(asked)
    assert without == [alone(base, base_dir, one) for one in asked]
    assert with_adapter == [alone(merged, base_dir, one) for one in asked]
    assert without != with_adapter


def test_sampled_answers_follow_the_model_and_their_own_seed_alone(base_dir, asked):
    one = asked[0]
    many = [Conversation(f"{one.key.split('/')[0]}/{sample}", one.image) for sample in range(120)]
    policy = LocalPolicy(base_dir, max_tokens=1, allowed_token_ids=[8, 9], temperature=0.5, seed=1)
    answers = policy.act(many)
    assert policy.act(many[100:101]) == answers[100:101]
    again = LocalPolicy(base_dir, max_tokens=1, allowed_token_ids=[8, 9], temperature=0.5, seed=2)
    assert again.act(many[:50]) != answers[:50]
    processor = AutoProcessor.from_pretrained(base_dir)
    text = processor.tokenizer.apply_chat_template(one.messages(), add_generation_prompt=True, tokenize=False)
    with torch.no_grad():
        given = processor(text=[text], images=one.images, return_tensors="pt")
        scores = model.initialize(3).eval()(**given).logits[0, -1, [8, 9]]
    chance = float((scores / 0.5).softmax(-1)[0])
    share = np.mean([answer == processor.tokenizer.decode([8]) for answer in answers])
    assert share == pytest.approx(chance, abs=4 * np.sqrt(chance * (1 - chance) / len(many)))


def test_an_adapter_of_another_base_is_refused_before_it_is_loaded(base_dir, adapted, tmp_path):
    model.save(model.initialize(4), tmp_path)
    with pytest.raises(DataError, match="was trained on base"):
        LocalPolicy(tmp_path, adapted[0])


def test_the_command_works_without_the_libraries_of_aws():
    from cdk_app.command import cli, outside

    assert cli.get_command(None, "evaluate").name == "evaluate"
    assert OSError in outside()
