"""Reads the budget of a chat's reasoning from any of its fields, and sets the template's switch.

    thinking_token_budget: 512        vLLM; also llama.cpp's and DashScope's names of it
    thinking: {"type": "enabled", "budget_tokens": 512}, or {"type": "disabled"}
    enable_thinking: false            DashScope; as chat_template_kwargs has it
    reasoning_effort: "low"           OpenAI; a budget where the template does not know it

Pure: request and prompt in, `ThinkingBudget` out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from atom.answer_parsing import AnswerFormats, AnswerParsing
from atom.answer_parsing.reasoning_parser import ReasoningStart
from atom.answer_parsing.tool_parsers import harmony
from atom.entrypoints.openai.protocol import ChatCompletionRequest, TemplateFields
from atom.errors import RequestError
from atom.structured_outputs.mark_spellings import MarkSpellings, spellings_of
from atom.structured_outputs.thinking_budget import ThinkingBudget
from atom.tokenizer import Tokenizer

# Tokens by effort, for models whose templates do not know it; higher efforts have no bound.
EFFORT_TOKENS: Mapping[str, int] = MappingProxyType(
    {"none": 0, "minimal": 128, "low": 1024, "medium": 4096}
)
_BUDGETS = (
    "thinking_token_budget", "reasoning_budget_tokens", "thinking_budget_tokens", "thinking_budget",
)  # fmt: skip


def template_switches(request: TemplateFields) -> dict[str, Any]:
    """Return the variables by which templates know whether to reason: Qwen's and DeepSeek's."""
    asked = request.enable_thinking
    if request.thinking is not None:
        asked = {"enabled": True, "disabled": False}.get(request.thinking.type)
    if asked is None and request.reasoning_effort == "none":
        asked = False
    return {} if asked is None else {"enable_thinking": asked, "thinking": asked}


def thinking_budget(
    request: ChatCompletionRequest,
    formats: AnswerFormats,
    parsing: AnswerParsing | None,
    tokenizer: Tokenizer | None,
    *,
    template_knows_effort: bool,
) -> ThinkingBudget | None:
    """Choose the bound on an answer's reasoning; None for no bound. parsing: of the answers. Raises
    `RequestError` for a budget that cannot be kept."""
    field, tokens = _asked(request)
    if tokens is None and not template_knows_effort and request.reasoning_effort is not None:
        tokens = EFFORT_TOKENS.get(request.reasoning_effort)
    if tokens is None:
        return None
    if formats.reasoning is None or tokenizer is None:
        # Generic clients send `thinking` to every model; one that does not reason keeps to it.
        if field in ("", "thinking"):
            return None
        raise RequestError(
            f"{field}: this server does not know how the model writes reasoning; start it with "
            f"--reasoning-parser, or leave it out",
            param=field,
        )
    if parsing is None or parsing.reasoning is ReasoningStart.OVER:  # there is no reasoning then
        return None
    budget = _budget(tokens, parsing, tokenizer)
    allowed = request.allowed_token_ids
    forced = (*budget.closing, *budget.then)
    if allowed is not None and not set(forced) <= set(allowed):
        raise RequestError(
            "allowed_token_ids: where reasoning is bounded, it must hold the tokens of the mark "
            f"that ends it: {', '.join(map(str, forced))}",
            param="allowed_token_ids",
        )
    return budget


def _budget(tokens: int, parsing: AnswerParsing, tokenizer: Tokenizer) -> ThinkingBudget:
    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    opened, marks = parsing.reasoning is ReasoningStart.OPEN, parsing.marks
    if marks is not None:
        return ThinkingBudget(
            tokens,
            opened,
            ids(marks.opening),
            ids(marks.closing),
            opening_text=None if opened else _spellings(tokenizer, marks.opening, at_start=True),
            closing_text=_spellings(tokenizer, marks.closing, at_start=False),
        )
    # The answer follows in another message; if it may be a call, its channel is not chosen.
    calls = parsing.calls is not None
    return ThinkingBudget(
        tokens,
        opened,
        ids(harmony.ANALYSIS),
        ids(harmony.END),
        then=ids(harmony.ASSISTANT + (harmony.CHANNEL if calls else harmony.FINAL)),
        excluded=ids("analysis")[0] if calls else None,
        reopens=True,
    )


@lru_cache(maxsize=8)
def _spellings(tokenizer: Tokenizer, mark: str, *, at_start: bool) -> MarkSpellings:
    """Find every way to spell a mark, once for each mark of a server's models."""
    ids = tokenizer.encode(mark, add_special_tokens=False)
    whole = ids if len(ids) == 1 else ()
    texts = tokenizer.text_bytes(tokenizer.size)
    return spellings_of(mark.encode(), texts, whole, at_start=at_start)


def _asked(request: ChatCompletionRequest) -> tuple[str, int | None]:
    """Return the field that sets a budget, and the budget; -1 is none. Raises `RequestError` for
    two that differ."""
    found = {name: value for name in _BUDGETS if (value := getattr(request, name)) is not None}
    if request.thinking is not None and request.thinking.budget_tokens is not None:
        found["thinking"] = request.thinking.budget_tokens
    if len(set(found.values())) > 1:
        first, second, *_ = found
        raise RequestError(
            f"{first} and {second} both bound the reasoning, differently; send one of them",
            param=second,
        )
    for name, tokens in found.items():
        return name, None if tokens == -1 else tokens
    return "", None
