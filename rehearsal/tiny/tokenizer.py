"""Word-level tokenizer of the tiny policy, in Qwen's chat layout.

No word is a prefix of another and the decoder only joins, so every sequence of ids decodes to a text that
encodes to the same ids. SkyRL cuts observations out of re-encoded histories by the number of sampled ids;
a tokenizer without this property would shift everything behind an unusual sample.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE, VIDEO, UNKNOWN = "<|image_pad|>", "<|video_pad|>", "<unk>"

ACTION_TEXTS = ("('move', 0)", "('move', 1)", "('move', 2)", "('move', 3)", "('stop', 'stop')")
"""The answers, in the order of `STOP` and the four directions right, up, left, down."""
STOP = 4

_ACTION_WORDS = ("('move', ", "('stop', ", "0)", "1)", "2)", "3)", "'stop')")
_WORDS = ("user\n", "assistant\n", "\n", *_ACTION_WORDS)
_SPECIAL = (PAD, IM_START, IM_END, VISION_START, VISION_END, IMAGE, VIDEO, UNKNOWN)
_VOCABULARY_SIZE = 32
_RESERVED = tuple(f"<|reserved_{i}|>" for i in range(_VOCABULARY_SIZE - len(_SPECIAL) - len(_WORDS)))
VOCABULARY = (*_SPECIAL, *_WORDS, *_RESERVED)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' or part.type == 'image_url' or 'image' in part -%}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{%- elif 'text' in part -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template; 32 ids, the unused ones named so that they round-trip too."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(
        models.WordLevel(vocab={word: i for i, word in enumerate(VOCABULARY)}, unk_token=UNKNOWN)
    )
    pattern = "|".join(re.escape(word).replace("\\\n", "\n") for word in _WORDS)
    words.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    words.decoder = decoders.Fuse()
    words.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (*_SPECIAL, *_RESERVED)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token=IM_END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        extra_special_tokens={
            "image_token": IMAGE,
            "video_token": VIDEO,
            "vision_start_token": VISION_START,
            "vision_end_token": VISION_END,
        },
    )


def token_id(text: str) -> int:
    """Id of one vocabulary entry; ValueError for anything else."""
    return VOCABULARY.index(text)


def allowed_token_ids() -> list[int]:
    """Ids a policy may sample. A sampled image placeholder would have no image and break the next forward."""
    return sorted(token_id(word) for word in (*_ACTION_WORDS, IM_END))


def answer_ids(action: int) -> list[int]:
    """The three ids of an answer: verb, argument, end of turn."""
    if action == STOP:
        return [token_id("('stop', "), token_id("'stop')"), token_id(IM_END)]
    return [token_id("('move', "), token_id(f"{action})"), token_id(IM_END)]
