"""Which markup a model answers in: by the names of vLLM's parsers, or found in its chat template.

`auto` takes what a template leaves no doubt about, and otherwise nothing: an answer is then passed
on as it is. Resolved once, when a server starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass

from atom.answer_parsing.events import CallParser
from atom.answer_parsing.hermes import HermesParser
from atom.answer_parsing.llama3_json import Llama3JsonParser

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family writes calls. before: the name; between: name and arguments; after: them.
    separator: between calls. parser: of an answer to a request with tools of these names. mark:
    that every call begins with, "" where calls are bare objects."""

    name: str
    before: str
    between: str
    after: str
    separator: str
    parser: Callable[[Collection[str]], CallParser]
    mark: str = ""

    def opening(self, tool: str) -> str:
        """A call of this tool up to its arguments."""
        return self.before + json.dumps(tool, ensure_ascii=False) + self.between


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """always: the model reasons although its template does not say so."""

    name: str
    always: bool


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """None: the family is not known, or is not to be parsed."""

    calls: CallFormat | None = None
    reasoning: ReasoningFormat | None = None

    def __str__(self) -> str:
        calls = NONE if self.calls is None else self.calls.name
        reasoning = NONE if self.reasoning is None else self.reasoning.name
        return f"tool call parser {calls}, reasoning parser {reasoning}"


HERMES = CallFormat(
    name="hermes",
    before='<tool_call>\n{"name": ',
    between=', "arguments": ',
    after="}\n</tool_call>",
    separator="\n",
    parser=lambda tools: HermesParser(),
    mark="<tool_call>",
)
LLAMA3_JSON = CallFormat(
    name="llama3_json",
    before='{"name": ',
    between=', "parameters": ',
    after="}",
    separator="; ",
    parser=Llama3JsonParser,
)
PLAIN_JSON = LLAMA3_JSON  # for forced calls of a model that was taught no notation
_CALLS = {found.name: found for found in (HERMES, LLAMA3_JSON)}
_REASONING = {
    found.name: found
    for found in (ReasoningFormat("qwen3", always=False), ReasoningFormat("deepseek_r1", True))
}
CALL_PARSERS = (AUTO, NONE, *_CALLS)
REASONING_PARSERS = (AUTO, NONE, *_REASONING)
# Other families that put their own notation between the same marks.
_NOT_HERMES = ("<function=", "<arg_key>")


def resolve_formats(calls: str, reasoning: str, template: str | None) -> AnswerFormats:
    """By names out of `CALL_PARSERS` and `REASONING_PARSERS`. template: the source of the chat
    template that conversations with tools get; None where a model has none."""
    source = template or ""
    return AnswerFormats(
        _calls_of(source) if calls == AUTO else _CALLS.get(calls),
        _reasoning_of(source) if reasoning == AUTO else _REASONING.get(reasoning),
    )


def _calls_of(source: str) -> CallFormat | None:
    if "<tool_call>" in source:
        plain = '"arguments"' in source and not any(mark in source for mark in _NOT_HERMES)
        return HERMES if plain else None
    return LLAMA3_JSON if '"parameters": ' in source and "ipython" in source else None


def _reasoning_of(source: str) -> ReasoningFormat | None:
    return _REASONING["qwen3"] if "</think>" in source else None
