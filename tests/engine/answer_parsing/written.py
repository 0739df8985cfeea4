"""Calls as each family's model writes them, put together by hand: what parsers and grammars are
held to. `dumps` makes the JSON; families without JSON write values as their templates do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from atom.answer_parsing.tool_parsers.table import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    GEMMA4,
    GLM45,
    GRANITE,
    HARMONY,
    HERMES,
    HUNYUAN,
    KIMI_K2,
    LFM2,
    LLAMA3_JSON,
    LLAMA4_PYTHONIC,
    MINIMAX_M2,
    MISTRAL,
    MISTRAL_LIST,
    NEMOTRON_V2,
    OLMO3,
    PHI4_MINI,
    QWEN3_CODER,
    SEED_OSS,
)

Call = tuple[str, dict[str, Any]]
Dumps = Callable[[Any], str]


def plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else plain(value)


def hermes(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {dumps(values)}}}\n</tool_call>'
        for name, values in calls
    )


def llama3_json(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    return "; ".join(
        f'{{"name": "{name}", "parameters": {dumps(values)}}}' for name, values in calls
    )


def deepseek_v3(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    each = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(values)}\n```"
        "<｜tool▁call▁end｜>"
        for name, values in calls
    )
    return f"<｜tool▁calls▁begin｜>{chr(10).join(each)}<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    each = (
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(values)}<｜tool▁call▁end｜>"
        for name, values in calls
    )
    return f"<｜tool▁calls▁begin｜>{''.join(each)}<｜tool▁calls▁end｜>"


def deepseek_v32(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    def parameter(key: str, value: Any) -> str:
        string = str(isinstance(value, str)).lower()
        begin = f'<｜DSML｜parameter name="{key}" string="{string}">'
        return f"{begin}{_bare(value)}</｜DSML｜parameter>\n"

    each = (
        f'<｜DSML｜invoke name="{name}">\n'
        f"{''.join(parameter(*item) for item in values.items())}</｜DSML｜invoke>\n"
        for name, values in calls
    )
    return f"<｜DSML｜function_calls>\n{''.join(each)}</｜DSML｜function_calls>"


def glm45(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    def call(name: str, values: dict[str, Any]) -> str:
        pairs = (
            f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n"
            for key, value in values.items()
        )
        return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"

    return "\n".join(call(*each) for each in calls)


def kimi_k2(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    each = (
        f"<|tool_call_begin|>functions.{name}:{place}<|tool_call_argument_begin|>{dumps(values)}"
        "<|tool_call_end|>"
        for place, (name, values) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(each)}<|tool_calls_section_end|>"


def mistral(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{dumps(values)}" for name, values in calls)


def mistral_list(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    each = (f'{{"name": "{name}", "arguments": {dumps(values)}}}' for name, values in calls)
    return f"[TOOL_CALLS] [{', '.join(each)}]"


def llama4_pythonic(calls: Sequence[Call], dumps: Dumps = repr) -> str:
    def call(name: str, values: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={dumps(value)}' for key, value in values.items())})"

    return f"[{', '.join(call(*each) for each in calls)}]"


def lfm2(calls: Sequence[Call], dumps: Dumps = repr) -> str:
    return f"<|tool_call_start|>{llama4_pythonic(calls, dumps)}<|tool_call_end|>"


def qwen3_coder(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    def call(name: str, values: dict[str, Any]) -> str:
        pairs = (
            f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in values.items()
        )
        return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"

    return "\n".join(call(*each) for each in calls)


def harmony(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(values)}"
        "<|call|>"
        for name, values in calls
    )


def seed_oss(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    def call(name: str, values: dict[str, Any]) -> str:
        pairs = (f"<parameter={key}>{_bare(value)}</parameter>\n" for key, value in values.items())
        return (
            f"<seed:tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</seed:tool_call>"
        )

    return "\n".join(call(*each) for each in calls)


def minimax_m2(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    def call(name: str, values: dict[str, Any]) -> str:
        pairs = (
            f'<parameter name="{key}">{_bare(value)}</parameter>\n' for key, value in values.items()
        )
        return f'<invoke name="{name}">\n{"".join(pairs)}</invoke>\n'

    return f"<minimax:tool_call>\n{''.join(call(*each) for each in calls)}</minimax:tool_call>"


def _listed(calls: Sequence[Call], dumps: Dumps) -> str:
    each = (f'{{"name": "{name}", "arguments": {dumps(values)}}}' for name, values in calls)
    return f"[{', '.join(each)}]"


def hunyuan(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    return f"<tool_calls>{_listed(calls, dumps)}</tool_calls>"


def phi4_mini(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    return f"functools{_listed(calls, dumps)}"


def granite(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    return f"<|tool_call|>{_listed(calls, dumps)}"


def nemotron_v2(calls: Sequence[Call], dumps: Dumps = plain) -> str:
    return f"<TOOLCALL>{_listed(calls, dumps)}</TOOLCALL>"


def _gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return f"{{{','.join(f'{_gemma_key(key)}:{_gemma_value(value[key])}' for key in value)}}}"
    return f"[{','.join(map(_gemma_value, value))}]" if isinstance(value, list) else plain(value)


def _gemma_key(key: str) -> str:
    """Keys are bare, but for those that are no names, which models write as strings."""
    return key if key.isidentifier() else _gemma_value(key)


def gemma4(calls: Sequence[Call], dumps: Dumps = _gemma_value) -> str:
    """dumps: of objects and lists; other values are written as they are at the top."""

    def argument(key: str, value: Any) -> str:
        nested = isinstance(value, dict | list)
        return f"{key}:{dumps(value) if nested else _gemma_value(value)}"

    def call(name: str, values: dict[str, Any]) -> str:
        pairs = ",".join(argument(*item) for item in values.items())
        return f"<|tool_call>call:{name}{{{pairs}}}<tool_call|>"

    return "".join(call(*each) for each in calls)


def olmo3(calls: Sequence[Call], dumps: Dumps = repr) -> str:
    def call(name: str, values: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={dumps(value)}' for key, value in values.items())})"

    written = "\n".join(call(*each) for each in calls)
    return f"<function_calls>{written}</function_calls>"


WRITERS = {
    "hermes": (HERMES, hermes),
    "llama3_json": (LLAMA3_JSON, llama3_json),
    "llama4_pythonic": (LLAMA4_PYTHONIC, llama4_pythonic),
    "lfm2": (LFM2, lfm2),
    "mistral": (MISTRAL, mistral),
    "mistral_list": (MISTRAL_LIST, mistral_list),
    "qwen3_coder": (QWEN3_CODER, qwen3_coder),
    "glm45": (GLM45, glm45),
    "kimi_k2": (KIMI_K2, kimi_k2),
    "deepseek_v3": (DEEPSEEK_V3, deepseek_v3),
    "deepseek_v31": (DEEPSEEK_V31, deepseek_v31),
    "deepseek_v32": (DEEPSEEK_V32, deepseek_v32),
    "minimax_m2": (MINIMAX_M2, minimax_m2),
    "seed_oss": (SEED_OSS, seed_oss),
    "hunyuan_a13b": (HUNYUAN, hunyuan),
    "phi4_mini_json": (PHI4_MINI, phi4_mini),
    "olmo3": (OLMO3, olmo3),
    "nemotron_json": (NEMOTRON_V2, nemotron_v2),
    "granite": (GRANITE, granite),
    "gemma4": (GEMMA4, gemma4),
    "openai": (HARMONY, harmony),
}
FAMILIES = [family for family, _ in WRITERS.values()]
# Those that write arguments as JSON.
WITH_JSON = [
    name for name in WRITERS
    if name not in (
        "llama4_pythonic", "lfm2", "qwen3_coder", "glm45", "deepseek_v32", "minimax_m2", "seed_oss",
        "olmo3", "gemma4",
    )
]  # fmt: skip
