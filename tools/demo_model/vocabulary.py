"""The vocabulary: byte-level BPE learnt from the corpus, and the ChatML form of a conversation.

Knows strings and token ids, nothing of the model. Called by training, by scoring and by the
checkpoint writer. A conversation's ids are the same as those of `CHAT_TEMPLATE` rendered by
transformers and then encoded: special tokens are atomic, so its parts can be encoded one by one.
"""

from collections.abc import Iterable, Sequence
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.demo_model.corpus import Corpus, Turn
from tools.demo_model.variation import (
    CLOSINGS,
    OPENINGS,
    SYSTEM_PROMPTS,
    ask_definition,
)

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def _texts(corpus: Corpus) -> Iterable[str]:
    random = Random(0)
    yield from (*OPENINGS, *CLOSINGS, *SYSTEM_PROMPTS)
    yield from corpus.documents
    for dialogue in corpus.conversations:
        yield from (turn.content for turn in dialogue)
    for entry in corpus.entries:
        asked = [*entry.questions, *(ask_definition(t, random) for t in entry.terms for _ in "ab")]
        for question in asked:
            yield question
            yield question.lower()  # people type so: their words deserve whole tokens
        yield entry.answer


def learn_vocabulary(corpus: Corpus, size: int) -> Tokenizer:
    """Byte-level BPE of `size` tokens, special ones included; any text can be encoded."""
    return learn_tokens(_texts(corpus), size, SPECIAL_TOKENS)


def learn_tokens(texts: Iterable[str], size: int, special_tokens: Sequence[str]) -> Tokenizer:
    """Learn byte-level BPE of these texts; any other text can be encoded as well."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def encode_turn(tokenizer: Tokenizer, turn: Turn) -> tuple[list[int], list[int]]:
    """Ids of what opens the turn, and of what its speaker says with the end of the turn."""
    opening = encode(tokenizer, f"{TURN_START}{turn.role}\n")
    return opening, encode(tokenizer, f"{turn.content}{TURN_END}")


def encode_prompt(tokenizer: Tokenizer, turns: Sequence[Turn]) -> list[int]:
    """Ids of a conversation that the assistant should continue."""
    text = "".join(f"{TURN_START}{t.role}\n{t.content}{TURN_END}\n" for t in turns)
    return encode(tokenizer, f"{text}{TURN_START}assistant\n")
