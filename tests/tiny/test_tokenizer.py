import random

import pytest

from rehearsal.tiny import layout
from rehearsal.tiny import tokenizer as words
from training import protocol


@pytest.fixture(scope="module")
def tokenizer():
    return words.build_tokenizer()


def test_every_sequence_of_ids_decodes_to_a_text_that_encodes_to_it(tokenizer):
    draws = random.Random(5)
    for _ in range(500):
        ids = [draws.randrange(len(words.VOCABULARY)) for _ in range(draws.randrange(1, 30))]
        text = tokenizer.decode(ids, skip_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == ids


def test_no_word_is_a_prefix_of_another():
    for word in words.VOCABULARY:
        assert [other for other in words.VOCABULARY if other.startswith(word)] == [word]


def test_answers_are_the_actions_of_the_protocol(tokenizer):
    assert tuple(action.value for action in protocol.ACTIONS) == words.ACTION_TEXTS
    for number, text in enumerate(words.ACTION_TEXTS):
        ids = tokenizer.encode(text + words.IM_END, add_special_tokens=False)
        assert ids == words.answer_ids(number)
        assert set(ids) <= set(words.allowed_token_ids())
        assert protocol.parse(tokenizer.decode(ids[:-1])) is protocol.ACTIONS[number]


def test_allowed_ids_hold_no_image_and_no_turn_start():
    banned = {words.token_id(text) for text in (words.IMAGE, words.VIDEO, words.IM_START, words.PAD)}
    assert not banned & set(words.allowed_token_ids())


def test_rendered_history_is_the_layout_that_was_learned(tokenizer):
    actions = [3, 0, 1]
    messages = []
    for action in actions:
        messages.append({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]})
        messages.append({"role": "assistant", "content": words.ACTION_TEXTS[action]})
    messages.append({"role": "user", "content": [{"type": "image"}]})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.count("('move', 3)<|im_end|>\n<|im_start|>user\n") == 1
    image = words.token_id(words.IMAGE)
    rendered = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        rendered += [token] * (16 if token == image else 1)
    learned = layout.conversations(layout.np.array([[*actions, 4]]), 4)[0]
    asked = layout.answer_starts(4, 4)[-1] + 1
    assert rendered == learned[:asked].tolist()
