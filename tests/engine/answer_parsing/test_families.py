"""What a chat template tells of its family, and what a prompt's end tells of reasoning."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom.answer_parsing import (
    AddedTokens,
    AnswerFormats,
    AnswerParsing,
    Content,
    Reasoning,
    resolve_formats,
)
from atom.answer_parsing.reasoning_parser import ReasoningStart, reasoning_start
from atom.chat_template import ChatTemplate
from atom.message_shape import TemplateSigns
from atom.sizing import ARCHITECTURES
from tests.engine.answer_parsing.pieces import events_of

TEMPLATES = Path(__file__).parents[1] / "unit" / "chat_templates"
QWEN3 = (TEMPLATES / "qwen3_like.jinja").read_text()
LLAMA3 = (TEMPLATES / "llama3_like.jinja").read_text()


def template_of(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


def signs_of(template: str) -> TemplateSigns:
    return ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}).signs


def telling(markup: str) -> TemplateSigns:
    """What a template shows that tells the model to write this, beside tools and without."""
    shown = f"{{% raw %}}{markup}{{% endraw %}}"
    turns = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return signs_of(f"{shown}{{% if tools %}}{{{{ tools }}}}{shown}{{% endif %}}{turns}")


def names(formats: AnswerFormats) -> tuple[str | None, str | None]:
    calls, reasoning = formats.calls, formats.reasoning
    return calls and calls.name, reasoning and reasoning.name


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("qwen3_like", ("hermes", "qwen3")),
        ("llama3_like", ("llama3_json", None)),
        ("deepseek_like", ("deepseek_v31", "qwen3")),
        ("kimi_like", ("kimi_k2", "qwen3")),
        ("glm_like", ("glm45", "qwen3")),
        ("gpt_oss_like", ("openai", "openai_gptoss")),
        ("mistral_like", ("mistral", None)),
        ("gemma_like", (None, None)),
        ("qwen3_coder_like", ("qwen3_coder", None)),
        ("deepseek_v3_like", ("deepseek_v3", None)),
        ("deepseek_v32_like", ("deepseek_v32", "qwen3")),
        ("mistral_v3_like", ("mistral", None)),
        ("llama4_pythonic_like", ("llama4_pythonic", None)),
    ],
)
def test_what_a_template_writes_of_calls_and_reasoning_tells_its_family(
    template: str, found: tuple[str | None, str | None]
) -> None:
    assert names(resolve_formats("auto", "auto", signs_of(template_of(template)))) == found


@pytest.mark.parametrize(
    ("markup", "found"),
    [
        ("", (None, None)),
        ("</think>", (None, "qwen3")),
        ("<tool_call>", (None, None)),  # in a notation that is not known
        ("<minimax:tool_call></think>", ("minimax_m2", "qwen3")),
        ("<seed:tool_call><function=</seed:think>", ("seed_oss", "seed_oss")),
        ("<tool_calls>[", ("hunyuan_a13b", None)),
        ("</think><answer></answer><tool_calls>[", ("hunyuan_a13b", "hunyuan_a13b")),
        ("<TOOLCALL>[</think>", ("nemotron_json", "qwen3")),
        ("<|tool_call>call:<channel|>", ("gemma4", "gemma4")),
        ('<tool_call>{"arguments": </think><response></response>', ("hermes", "ernie45")),
        ("functools[", ("phi4_mini_json", None)),
        ("<|tool|>[]<|/tool|>", ("phi4_mini_json", None)),
        ("<function_calls>", ("olmo3", None)),
        ("<|tool_call_start|><|tool_call_end|>", ("lfm2", None)),
        ("List of tools: []", ("lfm2", None)),
    ],
)
def test_what_a_template_tells_the_model_to_write_tells_it_too(
    markup: str, found: tuple[str | None, str | None]
) -> None:
    assert names(resolve_formats("auto", "auto", telling(markup))) == found


def test_a_model_without_a_template_is_of_no_family() -> None:
    assert names(resolve_formats("auto", "auto", None)) == (None, None)


def test_marks_of_results_are_none_of_answers() -> None:
    """A template that shows results of tools within <response> says nothing of answers."""
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}<response>{{ m.content }}</response>"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}</think>"
    )
    assert names(resolve_formats("auto", "auto", signs_of(source))) == (None, "qwen3")


_HERMES = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
_QWEN_XML = "<tool_call><function=f><parameter=a></function></tool_call>"
_GLM = "<tool_call>f<arg_key>a</arg_key></tool_call>"
_THINK, _NONE = "<think></think>", (None, None)
# What the templates of each architecture's models have, and the parsers that it is read by.
MARKUP: dict[str, tuple[str, tuple[str | None, str | None]]] = {
    "LlamaForCausalLM": (LLAMA3, ("llama3_json", None)),
    "Qwen2ForCausalLM": (_HERMES, ("hermes", None)),
    "Qwen3ForCausalLM": (QWEN3, ("hermes", "qwen3")),
    "MistralForCausalLM": (template_of("mistral_like"), ("mistral", None)),
    "Glm4MoeForCausalLM": (template_of("glm_like"), ("glm45", "qwen3")),
    "GptOssForCausalLM": (template_of("gpt_oss_like"), ("openai", "openai_gptoss")),
    "MiniMaxM2ForCausalLM": (f"<minimax:tool_call>{_THINK}", ("minimax_m2", "qwen3")),
    "MiniMaxM3VLForCausalLM": ("{{ messages }}", _NONE),  # its markup is not known here
    "MiMoV2FlashForCausalLM": (_QWEN_XML + _THINK, ("qwen3_coder", "qwen3")),
    "Glm4MoeLiteForCausalLM": (_GLM + _THINK, ("glm45", "qwen3")),
    "GlmMoeDsaForCausalLM": (_GLM + _THINK, ("glm45", "qwen3")),
    "SeedOssForCausalLM": (
        "<seed:tool_call><function=f></seed:tool_call></seed:think>", ("seed_oss", "seed_oss"),
    ),
    "SmolLM3ForCausalLM": (_HERMES + _THINK, ("hermes", "qwen3")),
    "Ernie4_5ForCausalLM": (_HERMES + _THINK + "<response></response>", ("hermes", "ernie45")),
    "Ernie4_5_MoeForCausalLM": (_HERMES + _THINK + "<response></response>", ("hermes", "ernie45")),
    "Exaone4ForCausalLM": (_HERMES + _THINK, ("hermes", "qwen3")),
    "Olmo3ForCausalLM": ("<function_calls></function_calls>" + _THINK, ("olmo3", "qwen3")),
    "GraniteForCausalLM": ("<|tool_call|>[]", ("granite", None)),
    "Phi3ForCausalLM": ("functools[", ("phi4_mini_json", None)),
    "HunYuanDenseV1ForCausalLM": (
        f"<tool_calls>[{_THINK}<answer></answer>", ("hunyuan_a13b", "hunyuan_a13b"),
    ),
    "HunYuanMoEV1ForCausalLM": (
        f"<tool_calls>[{_THINK}<answer></answer>", ("hunyuan_a13b", "hunyuan_a13b"),
    ),
    "MixtralForCausalLM": (template_of("mistral_v3_like"), ("mistral", None)),
    "Qwen2MoeForCausalLM": ("<|im_start|>", _NONE),
    "Qwen3MoeForCausalLM": (QWEN3, ("hermes", "qwen3")),
    "Qwen3NextForCausalLM": (QWEN3, ("hermes", "qwen3")),
    "Qwen3_5ForCausalLM": (_QWEN_XML + _THINK, ("qwen3_coder", "qwen3")),
    "Qwen3_5MoeForCausalLM": (_QWEN_XML + _THINK, ("qwen3_coder", "qwen3")),
    "Lfm2ForCausalLM": ("<|tool_call_start|>[]<|tool_call_end|>", ("lfm2", None)),
    "Lfm2MoeForCausalLM": ("<|tool_call_start|>[]<|tool_call_end|>", ("lfm2", None)),
    "GraniteMoeHybridForCausalLM": (_HERMES, ("hermes", None)),
    "NemotronHForCausalLM": (_QWEN_XML + _THINK, ("qwen3_coder", "qwen3")),
    "KimiLinearForCausalLM": ("<|tool_call_begin|>", ("kimi_k2", None)),
    "Gemma2ForCausalLM": (template_of("gemma_like"), _NONE),
    "Gemma3ForCausalLM": (template_of("gemma_like"), _NONE),
    "Gemma4ForCausalLM": (
        '<|tool_call>call:f{}<tool_call|><|channel>thought\n<channel|>', ("gemma4", "gemma4"),
    ),
    "Llama4ForCausalLM": (template_of("llama4_pythonic_like"), ("llama4_pythonic", None)),
    "DeepseekV2ForCausalLM": ("User: Assistant:", _NONE),
    "DeepseekV3ForCausalLM": (template_of("deepseek_v3_like"), ("deepseek_v3", None)),
    "DeepseekV32ForCausalLM": (template_of("deepseek_v32_like"), ("deepseek_v32", "qwen3")),
    "DeepseekV4ForCausalLM": ("{{ messages }}", _NONE),  # is published without a template
}  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_templates_of_every_model_tell_their_parsers(architecture: str) -> None:
    template, found = MARKUP[architecture]
    signs = signs_of(template) if "messages" in template else telling(template)
    assert names(resolve_formats("auto", "auto", signs)) == found


@pytest.mark.parametrize(
    ("added", "found"),
    [
        ({"[TOOL_CALLS]"}, ("mistral", None)),
        ({"[TOOL_CALLS]", "[THINK]", "[/THINK]"}, ("mistral", "mistral")),
        ({"<|tool_call_begin|>"}, ("kimi_k2", None)),
        ({"｜DSML｜", "<｜tool▁call▁begin｜>"}, ("deepseek_v32", None)),
        ({"<｜tool▁call▁begin｜>"}, ("deepseek_v31", None)),
        ({"<tool_call>"}, (None, None)),  # of several families
    ],
)
def test_a_vocabulary_tells_what_the_template_does_not(
    added: set[str], found: tuple[str | None, str | None]
) -> None:
    tokens = AddedTokens(frozenset(added))
    assert names(resolve_formats("auto", "auto", telling(""), tokens)) == found
    assert names(resolve_formats("auto", "auto", signs_of(QWEN3), tokens)) == ("hermes", "qwen3")


@pytest.mark.parametrize(
    ("template", "added", "begin"),
    [
        (template_of("mistral_like"), set(), "[TOOL_CALLS]f[ARGS]"),
        (template_of("mistral_v3_like"), set(), '{"name": "f", "arguments": '),
        (None, {"[TOOL_CALLS]"}, '{"name": "f", "arguments": '),
        (None, {"[TOOL_CALLS]", "[ARGS]"}, "[TOOL_CALLS]f[ARGS]"),
    ],
)
def test_mistrals_generations_are_told_apart(
    template: str | None, added: set[str], begin: str
) -> None:
    signs = None if template is None else signs_of(template)
    formats = resolve_formats("mistral", "auto", signs, AddedTokens(frozenset(added)))
    assert formats.calls is not None
    assert formats.calls.notation.begin("f") == begin


def test_a_name_wins_over_the_template() -> None:
    assert names(resolve_formats("none", "none", signs_of(QWEN3))) == (None, None)
    assert names(resolve_formats("llama3_json", "deepseek_r1", signs_of(QWEN3))) == (
        "llama3_json",
        "deepseek_r1",
    )


@pytest.mark.parametrize(
    ("prompt", "always", "start"),
    [
        ("<|im_start|>assistant\n", False, ReasoningStart.POSSIBLE),
        ("<|im_start|>assistant\n", True, ReasoningStart.OPEN),
        ("<|im_start|>assistant\n<think>\n", False, ReasoningStart.OPEN),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", True, ReasoningStart.OVER),
    ],
)
def test_a_prompts_end_tells_where_the_answer_begins(
    prompt: str, always: bool, start: ReasoningStart
) -> None:
    assert reasoning_start(prompt, always=always) is start


@pytest.mark.parametrize(
    ("start", "answer", "expected"),
    [
        (ReasoningStart.OPEN, "hm\n</think>\n\nYes", [Reasoning("hm"), Content("Yes")]),
        (ReasoningStart.OPEN, "<think>hm</think>Yes", [Reasoning("hm"), Content("Yes")]),
        (ReasoningStart.OPEN, "\nhm and", [Reasoning("hm and")]),
        (ReasoningStart.POSSIBLE, "<think>\nhm </th", [Reasoning("hm </th")]),
        (ReasoningStart.POSSIBLE, "<think>\n\n</think>\n\nYes", [Content("Yes")]),
        (ReasoningStart.POSSIBLE, "Yes <think>", [Content("Yes <think>")]),
        (ReasoningStart.POSSIBLE, "<th", [Content("<th")]),
        (ReasoningStart.OVER, "\n<think>a</think>", [Content("\n<think>a</think>")]),
    ],
)
def test_reasoning(start: ReasoningStart, answer: str, expected: list[object]) -> None:
    assert events_of(AnswerParsing(reasoning=start), [answer]) == expected
