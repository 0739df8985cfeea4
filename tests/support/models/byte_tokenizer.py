"""A real tokenizer.json small enough to read: every byte is a token, and a few merges exist.

Byte level, so that any text round-trips and a character may span several tokens; the merges make
some tokens longer than a character, so that stop strings and token borders do not coincide.
Used by the tiny checkpoints and by the tests of tokenising, stop strings and chat templates.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

# Pairs merged in this order; "Ġ" is the byte-level spelling of a space.
_MERGES = (
    "t h", "h e", "i n", "a n", "r e", "o n", "e r", "th e", "an d", "in g", "Ġ t", "Ġ a",
    "Ġ the", "Ġ and", "l o", "lo w", "o r", "e s", "e n", "s t", "i s", "o u", "a t", "l l",
    "he ll", "hell o", "Ġ w", "or l", "orl d", "Ġ s", "st o", "sto p", "Ġ o", "Ġ i", "q u",
)  # fmt: skip

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('unknown role ' + message.role) }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def build_byte_tokenizer(*, bos_token: str | None = None) -> Tokenizer:
    """256 bytes, then the merges, then the special tokens; ids are dense and in that order.

    With `bos_token`, encoding with special tokens puts it in front, as Llama's tokenizers do.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(pair.split()) for pair in _MERGES]
    pieces = [*alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))  # type: ignore[arg-type]
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    if bos_token is not None:
        from tokenizers.processors import TemplateProcessing

        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos_token} $A",
            special_tokens=[(bos_token, tokenizer.token_to_id(bos_token))],
        )
    return tokenizer


def write_byte_tokenizer(folder: Path, *, bos_token: str | None = None) -> Tokenizer:
    """Writes tokenizer.json and tokenizer_config.json (with the chat template) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_byte_tokenizer(bos_token=bos_token)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos_token,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": 1_000_000,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    return tokenizer
