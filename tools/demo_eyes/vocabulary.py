"""The vocabulary: byte-level BPE of the questions and answers, and the form of a conversation.

A conversation's ids are those of `CHAT_TEMPLATE` rendered and then encoded, with the placeholder
of a picture expanded to its rows of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tokenizers import Tokenizer

from tools.demo_eyes.pictures import draw_scene
from tools.demo_eyes.questions import NO_PICTURE, WITHOUT_PICTURE, Subject, ask
from tools.demo_model.vocabulary import SPECIAL_TOKENS as SPECIAL_TOKENS_OF_CHATS
from tools.demo_model.vocabulary import learn_tokens

IMAGE, IMAGE_BREAK, IMAGE_END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
SPECIAL_TOKENS = (*SPECIAL_TOKENS_OF_CHATS, IMAGE, IMAGE_BREAK, IMAGE_END)
VOCABULARY = 512

CHAT_TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.content is string -%}
        {{- message.content -}}
    {%- else -%}
        {%- for part in message.content -%}
            {%- if part.type == 'text' -%}
                {{- part.text -}}
            {%- elif part.type == 'image' -%}
                {{- '[IMG]' -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def learn_vocabulary() -> Tokenizer:
    """Learn the tokens, the same ones every time; any text can be encoded."""
    return learn_tokens(_texts(), VOCABULARY, SPECIAL_TOKENS)


def _texts() -> Iterator[str]:
    random = Random(0)
    yield from (*WITHOUT_PICTURE, NO_PICTURE, "user\n", "assistant\n", "system\n")
    for _ in range(400):
        scene = draw_scene(random)
        for subject in Subject:
            asked = ask(subject, scene, random)
            yield from (asked.question, asked.answer)


def image_text(rows: int, columns: int) -> str:
    """Return the placeholder of a picture of that many tokens."""
    return IMAGE_BREAK.join([IMAGE * columns] * rows) + IMAGE_END
