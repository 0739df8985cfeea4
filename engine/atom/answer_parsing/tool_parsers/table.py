"""The families by the names of vLLM's parsers; recognition.py finds which of them a model is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from atom.answer_parsing.notation import (
    CallNotation,
    ParameterNotation,
    in_turn,
    json_value,
    parameter,
    parameter_values,
    parameters,
    sequence,
    text,
)
from atom.answer_parsing.reasoning_parser import ReasoningMarks, ReasoningStart
from atom.answer_parsing.tool_parsers import (
    deepseek_v3,
    deepseek_v32,
    gemma4,
    glm45,
    granite,
    harmony,
    hermes,
    hunyuan,
    kimi_k2,
    lfm2,
    llama3_json,
    llama4_pythonic,
    minimax_m2,
    mistral,
    nemotron_v2,
    olmo3,
    phi4_mini,
    qwen3_coder,
    seed_oss,
)
from atom.answer_parsing.tool_parsers.deepseek_v31 import DeepSeekV31Parser
from atom.answer_parsing.tool_parsers.formats import (
    AUTO,
    NONE,
    CallFormat,
    ReasoningFormat,
)


def _quoted(before: str, between: str) -> Callable[[str], str]:
    return lambda tool: before + json.dumps(tool, ensure_ascii=False) + between


_JSON = CallNotation(lambda tool: "", json_value)


def _json_list(begin: str, end: str) -> CallNotation:
    """Describe calls as a JSON list of objects, between a beginning and an end."""
    return CallNotation(
        _quoted('{"name": ', ', "arguments": '),
        json_value,
        "}",
        separator=", ",
        section=(begin, end),
    )


HERMES = CallFormat(
    name="hermes",
    notation=CallNotation(
        _quoted('<tool_call>\n{"name": ', ', "arguments": '),
        json_value,
        "}\n</tool_call>",
        separator="\n",
    ),
    parser=hermes.HermesParser,
    mark=hermes.OPENING,
    marks=(hermes.OPENING, hermes.CLOSING),
)
LLAMA3_JSON = CallFormat(
    name="llama3_json",
    notation=CallNotation(
        _quoted('{"name": ', ', "parameters": '), json_value, "}", separator="; "
    ),
    parser=llama3_json.Llama3JsonParser,
)
PLAIN_JSON = LLAMA3_JSON  # for forced calls of a model that was taught no notation
_FENCE = "\n```json\n"
DEEPSEEK_V3 = CallFormat(
    name="deepseek_v3",
    notation=CallNotation(
        lambda tool: f"{deepseek_v3.CALL}function{deepseek_v3.SEPARATOR}{tool}{_FENCE}",
        json_value,
        f"\n```{deepseek_v3.CALL_END}",
        separator="\n",
        section=(deepseek_v3.SECTION, deepseek_v3.SECTION_END),
    ),
    parser=deepseek_v3.DeepSeekV3Parser,
    mark=deepseek_v3.SECTION,
    marks=deepseek_v3.MARKS,
)
DEEPSEEK_V31 = CallFormat(
    name="deepseek_v31",
    notation=CallNotation(
        lambda tool: f"{deepseek_v3.CALL}{tool}{deepseek_v3.SEPARATOR}",
        json_value,
        deepseek_v3.CALL_END,
        section=(deepseek_v3.SECTION, deepseek_v3.SECTION_END),
    ),
    parser=DeepSeekV31Parser,
    mark=deepseek_v3.SECTION,
    marks=deepseek_v3.MARKS,
)
_DSML_PARAMETER = ParameterNotation(
    lambda key, bare: f'{deepseek_v32.PARAMETER}{key}" string="{"true" if bare else "false"}">',
    f"{deepseek_v32.PARAMETER_END}\n",
)
DEEPSEEK_V32 = CallFormat(
    name="deepseek_v32",
    notation=CallNotation(
        lambda tool: f'{deepseek_v32.CALL}{tool}">\n',
        lambda schema: parameters(schema, _DSML_PARAMETER),
        f"{deepseek_v32.CALL_END}\n",
        values=parameter_values(_DSML_PARAMETER),
        section=(f"{deepseek_v32.SECTION}\n", deepseek_v32.SECTION_END),
    ),
    parser=deepseek_v32.DeepSeekV32Parser,
    mark=deepseek_v32.SECTION,
    marks=(deepseek_v32.DSML,),
)
_GLM_PARAMETER = ParameterNotation(
    lambda key, bare: f"{glm45.KEY}{key}{glm45.KEY_END}\n{glm45.VALUE}", f"{glm45.VALUE_END}\n"
)
GLM45 = CallFormat(
    name="glm45",
    notation=CallNotation(
        lambda tool: f"{glm45.CALL}{tool}\n",
        lambda schema: parameters(schema, _GLM_PARAMETER),
        glm45.CALL_END,
        values=parameter_values(_GLM_PARAMETER),
        separator="\n",
    ),
    parser=glm45.Glm45Parser,
    mark=glm45.CALL,
    marks=glm45.MARKS,
)
KIMI_K2 = CallFormat(
    name="kimi_k2",
    notation=CallNotation(
        lambda tool: f"{kimi_k2.CALL}functions.{tool}:",
        lambda schema: sequence(
            {"type": "regex", "pattern": "[0-9]{1,4}"}, text(kimi_k2.ARGUMENTS), json_value(schema)
        ),
        kimi_k2.CALL_END,
        section=(kimi_k2.SECTION, kimi_k2.SECTION_END),
        values=lambda arguments, place: (
            f"{place}{kimi_k2.ARGUMENTS}{_JSON.values(arguments, place)}"
        ),
    ),
    parser=kimi_k2.KimiK2Parser,
    mark=kimi_k2.SECTION,
    marks=kimi_k2.MARKS,
)
MISTRAL = CallFormat(
    name="mistral",
    notation=CallNotation(lambda tool: f"{mistral.CALLS}{tool}{mistral.ARGUMENTS}", json_value),
    parser=mistral.MistralParser,
    mark=mistral.CALLS,
    marks=mistral.MARKS,
    id_chars=mistral.ID_CHARS,
)
# The same parser's, for models of before the mark [ARGS].
MISTRAL_LIST = replace(
    MISTRAL,
    notation=_json_list(f"{mistral.CALLS} [", "]"),
)
LLAMA4_PYTHONIC = CallFormat(
    name="llama4_pythonic",
    notation=CallNotation(
        lambda tool: f"{tool}(",
        llama4_pythonic.keywords,
        ")",
        separator=", ",
        section=("[", "]"),
        values=llama4_pythonic.keyword_values,
    ),
    parser=llama4_pythonic.Llama4PythonicParser,
    marks=llama4_pythonic.MARKS,
)
LFM2 = CallFormat(
    name="lfm2",
    notation=CallNotation(
        lambda tool: f"{tool}(", llama4_pythonic.keywords, ")", separator=", ",
        section=(f"{lfm2.START}[", f"]{lfm2.END}"), values=llama4_pythonic.keyword_values,
    ),
    parser=lfm2.Lfm2Parser,
    mark=lfm2.START,
    marks=lfm2.MARKS,
)  # fmt: skip
_QWEN_PARAMETER = ParameterNotation(
    lambda key, bare: f"{qwen3_coder.PARAMETER}{key}>\n", f"\n{qwen3_coder.PARAMETER_END}\n"
)
QWEN3_CODER = CallFormat(
    name="qwen3_coder",
    notation=CallNotation(
        lambda tool: f"{qwen3_coder.CALL}\n{qwen3_coder.FUNCTION}{tool}>\n",
        lambda schema: parameters(schema, _QWEN_PARAMETER),
        f"{qwen3_coder.FUNCTION_END}\n{qwen3_coder.CALL_END}",
        values=parameter_values(_QWEN_PARAMETER),
        separator="\n",
    ),
    parser=qwen3_coder.Qwen3CoderParser,
    mark=qwen3_coder.CALL,
    marks=(qwen3_coder.CALL, qwen3_coder.CALL_END),
)
_SEED_PARAMETER = ParameterNotation(
    lambda key, bare: f"{qwen3_coder.PARAMETER}{key}>", f"{qwen3_coder.PARAMETER_END}\n"
)
SEED_OSS = CallFormat(
    name="seed_oss",
    notation=CallNotation(
        lambda tool: f"{seed_oss.CALL}\n{qwen3_coder.FUNCTION}{tool}>\n",
        lambda schema: parameters(schema, _SEED_PARAMETER),
        f"{qwen3_coder.FUNCTION_END}\n{seed_oss.CALL_END}",
        values=parameter_values(_SEED_PARAMETER),
        separator="\n",
    ),
    parser=seed_oss.SeedOssParser,
    mark=seed_oss.CALL,
    marks=(seed_oss.CALL, seed_oss.CALL_END),
)
_MINIMAX_PARAMETER = ParameterNotation(
    lambda key, bare: f'{minimax_m2.PARAMETER}{key}">', f"{minimax_m2.PARAMETER_END}\n"
)
MINIMAX_M2 = CallFormat(
    name="minimax_m2",
    notation=CallNotation(
        lambda tool: f'{minimax_m2.CALL}{tool}">\n',
        lambda schema: parameters(schema, _MINIMAX_PARAMETER),
        f"{minimax_m2.CALL_END}\n",
        values=parameter_values(_MINIMAX_PARAMETER),
        section=(f"{minimax_m2.SECTION}\n", minimax_m2.SECTION_END),
    ),
    parser=minimax_m2.MiniMaxM2Parser,
    mark=minimax_m2.SECTION,
    marks=(minimax_m2.SECTION, minimax_m2.SECTION_END),
)
HUNYUAN = CallFormat(
    name="hunyuan_a13b",
    notation=_json_list(f"{hunyuan.CALLS}[", f"]{hunyuan.CALLS_END}"),
    parser=hunyuan.HunyuanParser,
    mark=hunyuan.CALLS,
    marks=(hunyuan.CALLS, hunyuan.CALLS_END),
)
PHI4_MINI = CallFormat(
    name="phi4_mini_json",
    notation=_json_list(f"{phi4_mini.CALLS}[", "]"),
    parser=phi4_mini.Phi4MiniParser,
    mark=phi4_mini.CALLS,
)
NEMOTRON_V2 = CallFormat(
    name="nemotron_json",
    notation=_json_list(f"{nemotron_v2.CALLS}[", f"]{nemotron_v2.CALLS_END}"),
    parser=nemotron_v2.NemotronV2Parser,
    mark=nemotron_v2.CALLS,
    marks=(nemotron_v2.CALLS, nemotron_v2.CALLS_END),
)
GRANITE = CallFormat(
    name="granite",
    notation=_json_list(f"{granite.CALLS}[", "]"),
    parser=granite.GraniteParser,
    mark=granite.CALLS,
    marks=(granite.CALLS, granite.CALLS_IN_WORDS),
)
_GEMMA_PARAMETER = ParameterNotation(
    lambda key, bare: f"{key}:{gemma4.QUOTE if bare else ''}", string_end=gemma4.QUOTE
)
GEMMA4 = CallFormat(
    name="gemma4",
    notation=CallNotation(
        lambda tool: f"{gemma4.CALL}{gemma4.NAME}{tool}{{",
        lambda schema: in_turn(
            schema, lambda root, key: parameter(root, key, _GEMMA_PARAMETER), ","
        ),
        f"}}{gemma4.CALL_END}",
        values=parameter_values(_GEMMA_PARAMETER, ","),
    ),
    parser=gemma4.Gemma4Parser,
    mark=gemma4.CALL,
    marks=gemma4.MARKS,
)
OLMO3 = CallFormat(
    name="olmo3",
    notation=CallNotation(
        lambda tool: f"{tool}(",
        llama4_pythonic.keywords,
        ")",
        separator="\n",
        section=(olmo3.SECTION, olmo3.SECTION_END),
        values=llama4_pythonic.keyword_values,
    ),
    parser=olmo3.Olmo3Parser,
    mark=olmo3.SECTION,
    marks=(olmo3.SECTION, olmo3.SECTION_END),
)
HARMONY = CallFormat(
    name="openai",
    notation=CallNotation(
        lambda tool: (
            f"{harmony.CHANNEL}commentary to={harmony.FUNCTIONS}{tool} "
            f"{harmony.CONSTRAIN}json{harmony.MESSAGE}"
        ),
        json_value,
        single=True,
    ),
    parser=lambda tools: harmony.HarmonyParser(tools, ReasoningStart.POSSIBLE),
    marks=harmony.MARKS,
)
CALLS = {
    found.name: found
    for found in (
        HERMES, LLAMA3_JSON, LLAMA4_PYTHONIC, LFM2, MISTRAL, QWEN3_CODER, GLM45, KIMI_K2,
        DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32, MINIMAX_M2, SEED_OSS, HUNYUAN, PHI4_MINI, OLMO3,
        GEMMA4, NEMOTRON_V2, GRANITE, HARMONY,
    )
} | {
    "harmony": HARMONY, "glm47": GLM45, "qwen3_xml": QWEN3_CODER, "mimo": QWEN3_CODER,
    "ernie45": HERMES,
}  # fmt: skip
_SEED_MARKS = ReasoningMarks("<seed:think>", "</seed:think>")
MISTRAL_MARKS = ReasoningMarks("[THINK]", "[/THINK]")
_GEMMA_MARKS = ReasoningMarks("<|channel>", "<channel|>", title="thought")
_HUNYUAN_MARKS = ReasoningMarks("<think>", "</think>", content=("<answer>", "</answer>"))
_ERNIE_MARKS = ReasoningMarks("<think>", "</think>", content=("<response>", "</response>"))
_APRIEL_MARKS = ReasoningMarks(
    "Here are my reasoning steps:",
    "[BEGIN FINAL RESPONSE]",
    content=("", "[END FINAL RESPONSE]"),
)
CHANNELS = ReasoningFormat("openai_gptoss", marks=None)
REASONING = {
    found.name: found
    for found in (
        ReasoningFormat("qwen3"), ReasoningFormat("deepseek_r1", always=True),
        ReasoningFormat("deepseek_v3"), ReasoningFormat("glm45"), ReasoningFormat("kimi_k2"),
        ReasoningFormat("mistral", marks=MISTRAL_MARKS),
        ReasoningFormat("minimax_m2", always=True), ReasoningFormat("ernie45", marks=_ERNIE_MARKS),
        ReasoningFormat("hunyuan_a13b", marks=_HUNYUAN_MARKS),
        ReasoningFormat("apriel", marks=_APRIEL_MARKS),
        ReasoningFormat("gemma4", marks=_GEMMA_MARKS),
        ReasoningFormat("olmo3", always=True), ReasoningFormat("seed_oss", marks=_SEED_MARKS),
        CHANNELS,
    )
} | {"harmony": CHANNELS, "mimo": ReasoningFormat("qwen3")}  # fmt: skip
CALL_PARSERS = (AUTO, NONE, *CALLS)
REASONING_PARSERS = (AUTO, NONE, *REASONING)
