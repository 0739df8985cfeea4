"""A model folder that reads images, without weights, and images of a few tokens for it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import AddedToken, Tokenizer

from tests.support.models.byte_tokenizer import (
    END_OF_TEXT,
    TURN_END,
    build_byte_tokenizer,
    write_byte_tokenizer,
)
from tests.support.pictures import file_of

IMAGE, BREAK, END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
SIDE = 28  # pixels of a token's side
# Shows images of users and, where {tool_images} says so, of results.
_TEMPLATE = """\
{%- macro show(content, images) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'text' -%}
                {{- part.text -}}
            {%- elif part.type == 'image' and images -%}
                {{- '[IMG]' -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {{- show(message.content, message.role == 'user' or TOOL_IMAGES) + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

# A template for agents: images everywhere, and calls in hermes' markup.
AGENT_TEMPLATE = (
    _TEMPLATE.partition("{%- for message in messages -%}")[0]
    + """\
{%- if tools -%}
    {{- '<|im_start|>system\\nCall <tool_call>{"name": …, "arguments": …}</tool_call>:' -}}
    {%- for tool in tools -%}
        {{- '\\n' + (tool | tojson) -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.reasoning_content -%}
        {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}
    {%- endif -%}
    {{- show(message.content or '', true) -}}
    {%- for call in message.tool_calls or [] -%}
        {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
        {{- (call.function.arguments | tojson) + '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
)


def write_seeing_model(
    folder: Path, *, context_tokens: int = 1024, tool_images: bool = True
) -> Path:
    """Write all files of a checkpoint but the weights. tool_images: the chat template shows images
    of tools' results."""
    tokenizer = write_seeing_tokenizer(folder, tool_images=tool_images)
    (folder / "config.json").write_text(json.dumps(_config(tokenizer, context_tokens)))
    processor = {"patch_size": 14, "spatial_merge_size": 2}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


def write_seeing_tokenizer(folder: Path, *, tool_images: bool = True) -> Tokenizer:
    """Write a tokenizer with Pixtral's tokens and a chat template that shows images."""
    write_byte_tokenizer(folder)
    tokenizer = build_byte_tokenizer()
    tokenizer.add_special_tokens(
        [AddedToken(each, special=True, normalized=False) for each in (IMAGE, BREAK, END)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = _TEMPLATE.replace("TOOL_IMAGES", str(tool_images).lower())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def _config(tokenizer: Tokenizer, context_tokens: int) -> dict[str, Any]:
    ends = [tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)]
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "image_token_index": tokenizer.token_to_id(IMAGE),
        "spatial_merge_size": 2,
        "eos_token_id": ends,
        "torch_dtype": "float32",
        "text_config": {
            "model_type": "mistral",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": context_tokens,
            "rms_norm_eps": 1e-5,
        },
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "head_dim": 16,
            "image_size": 784,
            "patch_size": 14,
        },
    }


def picture(width: int, height: int, colour: str = "red") -> bytes:
    """Return the file of a picture of that many tokens."""
    return file_of(Image.new("RGB", (width * SIDE, height * SIDE), colour))


def data_url(file: bytes, kind: str = "image/png") -> str:
    """Return a file as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def image_part(file: bytes, **more: Any) -> dict[str, Any]:
    """Return a file as a part of a chat's message. more: of its image_url."""
    return {"type": "image_url", "image_url": {"url": data_url(file), **more}}
