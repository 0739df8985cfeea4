"""A server whose answers are the prompts of its requests: what a test lets the model say.

The chat template shows the last message alone and, behind it where there are tools, the marks of a
family, by which the server knows how to read answers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app

CHAT = "/v1/chat/completions"
END = "<END>"  # a stop string: with it the model's own end
MARKS = {
    "hermes": '<tool_call> "arguments" </think>',
    "llama3_json": 'ipython "parameters":',
    "unknown": "",
    "qwen3_coder": "<tool_call> <function= </think>",
    "glm45": "<tool_call> <arg_key> </think>",
    "kimi_k2": "<|tool_call_begin|> </think>",
    "deepseek_v3": "<｜tool▁call▁begin｜> ```json </think>",
    "deepseek_v31": "<｜tool▁call▁begin｜> </think>",
    "deepseek_v32": "｜DSML｜ </think>",
    "mistral": "[TOOL_CALLS] [ARGS] [/THINK]",
    "mistral_list": "[TOOL_CALLS] [/THINK]",
    "lfm2": "<|tool_call_start|> </think>",  # as LFM2.5-Thinking
    "llama4_pythonic": "func_name1( </think>",
    "minimax_m2": "<minimax:tool_call> </think>",
    "seed_oss": "<seed:tool_call> <function= </seed:think>",
    "hunyuan_a13b": "<tool_calls>[ </think> <answer> </answer>",
    "phi4_mini_json": "functools[ </think>",
    "olmo3": "<function_calls> </think>",
    "granite": "<|tool_call|> </think>",
    "nemotron_json": "<TOOLCALL>[ </think>",
    "gemma4": "<|tool_call>call: <|channel>thought <channel|>",
    "openai": "<|channel|> to=functions.",
}
# Special tokens of published vocabularies; other families' marks are text, or plain added tokens.
SPECIAL = {
    "kimi_k2": ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>",
                "<|tool_call_argument_begin|>", "<|tool_calls_section_end|>"),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    "deepseek_v32": ("｜DSML｜",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    "openai": ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>",
               "<|return|>"),
    "granite": ("<|tool_call|>",),
    "hermes": ("<tool_call>", "</tool_call>", "<think>", "</think>"),
    "glm45": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
              "</arg_value>"),
}  # fmt: skip
SPECIAL |= {"deepseek_v31": SPECIAL["deepseek_v3"], "mistral_list": SPECIAL["mistral"]}


def telling(family: str) -> str:
    """The part of a template that tells the model its family's notation, beside the tools."""
    return (
        f"{{% if tools or thinking %}} {{% raw %}}{MARKS[family]}{{% endraw %}}"
        "{% for tool in tools or () %} {{ tool.function.name }}{% endfor %}.{% endif %}"
    )


def special_marks(family: str) -> list[AddedToken]:
    return [AddedToken(text, special=True) for text in SPECIAL.get(family, ())]


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("weather", type="object", properties={"city": {"type": "string"}}, required=["city"]),
    tool("time", type="object", properties={}),
]


@contextlib.asynccontextmanager
async def echoing(
    folder: Path,
    family: str = "hermes",
    *,
    template: str = "{{ messages[-1].content }}",
    marks: Sequence[AddedToken] = (),
    held: bool = False,
) -> AsyncIterator[AppRig]:
    """marks: tokens of their own, as the marks of real models are. held: answers by `core.step`."""
    write_model_folder(folder, context_tokens=4096)
    if marks:
        _add_tokens(folder, marks)
    (folder / "chat_template.jinja").write_text(template + telling(family))
    async with serve_app(build_test_config(folder), held=held) as rig:
        yield rig
        assert rig.engine.open_requests == 0


def _add_tokens(folder: Path, marks: Sequence[AddedToken]) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(list(marks))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] = tokenizer.get_vocab_size()
    (folder / "config.json").write_text(json.dumps(config))


async def whole(rig: AppRig, answer: str, **fields: Any) -> dict[str, Any]:
    """The only choice of an answer to its end, or cut where max_tokens says."""
    body = {"messages": [{"role": "user", "content": answer + END}], "stop": END, "tools": TOOLS}
    response = await rig.post(CHAT, **{**body, **fields})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return dict(choice)


async def streamed(rig: AppRig, answer: str, **fields: Any) -> list[dict[str, Any]]:
    """The choices of the events of the same answer."""
    body = {"messages": [{"role": "user", "content": answer + END}], "stop": END, "tools": TOOLS}
    events = await rig.events(CHAT, **{**body, **fields})
    assert events[-1] == "[DONE]"
    return [choice for event in events[:-1] for choice in event["choices"]]
