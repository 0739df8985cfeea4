"""An answer with calls goes back to the model as the model wrote it: through templates built like
those of Qwen 3 and Llama 3.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.openai.chat_prompt import chat_prompt
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from tests.engine.tool_calls.echo import CHAT, END, TOOLS, telling
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import serve_app

TEMPLATES = Path(__file__).parents[1] / "unit" / "chat_templates"
USER = {"role": "user", "content": "Is it warm in Paris?"}
MARKED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
BARE = '{"name": "weather", "parameters": {"city": "Paris"}}'
QWEN_PROMPT = f"""\
<|im_start|>assistant
<think>
I ask.
</think>

{MARKED}<|im_end|>
<|im_start|>user
<tool_response>
20 °C
</tool_response><|im_end|>
<|im_start|>assistant
"""
LLAMA_PROMPT = (
    f"<|start_header_id|>assistant<|end_header_id|>\n\n{BARE}<|eot_id|>"
    '<|start_header_id|>ipython<|end_header_id|>\n\n"20 °C"<|eot_id|>'
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)


async def answer_of(folder: Path, family: str, answer: str) -> dict[str, Any]:
    """The message that a server makes of what a model wrote. (Without a model it answers what it is
    asked, through a template that tells this family.)"""
    echoes = folder / "echoes"
    write_model_folder(echoes, context_tokens=4096)
    (echoes / "chat_template.jinja").write_text("{{ messages[-1].content }}" + telling(family))
    async with serve_app(build_test_config(echoes)) as rig:
        body = {"messages": [{"role": "user", "content": answer + END}], "stop": END}
        response = await rig.post(CHAT, **body, tools=TOOLS)
    return dict(response.json()["choices"][0]["message"])


@pytest.mark.parametrize(
    ("template", "family", "answer", "expected"),
    [
        ("qwen3_like", "hermes", f"<think>\nI ask.\n</think>\n\n{MARKED}", QWEN_PROMPT),
        ("llama3_like", "llama3_json", BARE, LLAMA_PROMPT),
    ],
)
async def test_an_answer_comes_back_into_the_prompt_as_it_was_written(
    tmp_path: Path, template: str, family: str, answer: str, expected: str
) -> None:
    folder = write_model_folder(tmp_path, context_tokens=4096)
    (folder / "chat_template.jinja").write_text((TEMPLATES / f"{template}.jinja").read_text())
    message = await answer_of(folder, family, answer)
    (call,) = message["tool_calls"]
    assert message["content"] is None
    result = {"role": "tool", "tool_call_id": call["id"], "content": "20 °C"}
    body = {"messages": [USER, message, result], "tools": TOOLS}
    request = ChatCompletionRequest.model_validate_json(json.dumps(body))
    async with serve_app(build_test_config(folder)) as rig:
        prompt = chat_prompt(rig.engine, request).text
    assert prompt.endswith(expected), prompt[-600:]
