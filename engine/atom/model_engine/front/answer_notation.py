"""Finds the notation of a model's answers, and has its chat template write calls in the same one.

The template's renderings reveal the family; if the template has no place for calls or for tools,
the family's notation supplies them. Called once, at start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from atom.answer_parsing import (
    AddedTokens,
    AnswerFormats,
    AnswerParsing,
    Content,
    Reasoning,
    resolve_formats,
)
from atom.answer_parsing.reasoning_parser import ReasoningStart
from atom.answer_parsing.tool_parsers import AUTO, PLAIN_JSON, harmony
from atom.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True)
class AnswerNotation:
    """The formats of answers, and the template that writes calls so. notes: for the log, each with
    its level."""

    formats: AnswerFormats
    template: ChatTemplate | None
    notes: tuple[tuple[int, str], ...] = ()


def resolve_notation(
    template: ChatTemplate | None, calls: str, reasoning: str, tokens: AddedTokens
) -> AnswerNotation:
    """Find the formats of a model. calls, reasoning: names of parsers; tokens: of its
    vocabulary."""
    signs = None if template is None else template.signs
    formats = resolve_formats(calls, reasoning, signs, tokens)
    if template is None:
        return AnswerNotation(formats, None)
    unread = calls == AUTO and formats.calls is None and bool(template.signs.call)
    if calls == AUTO and formats.calls is None and not template.tells_tools:
        formats = replace(formats, calls=PLAIN_JSON)  # which the model is then instructed to use
    notation = (formats.calls or PLAIN_JSON).notation
    made = template.writing_calls(notation.written, single=notation.single)
    if formats.reasoning is not None and formats.reasoning.marks is None:
        made = made.reading_answers(harmony.CHANNEL, _read_channels)
    notes = tuple(_notes(template, formats, unread=unread))
    return AnswerNotation(formats, made, notes)


def _read_channels(answer: str) -> tuple[str, str]:
    """Read the content and the reasoning of an answer in channels."""
    parser = AnswerParsing(reasoning=ReasoningStart.POSSIBLE, marks=None).parser()
    events = [*parser.feed(answer), *parser.finish(ended=True)]
    content = "".join(event.text for event in events if isinstance(event, Content))
    return content, "".join(event.text for event in events if isinstance(event, Reasoning))


def _notes(
    template: ChatTemplate, formats: AnswerFormats, *, unread: bool
) -> Iterator[tuple[int, str]]:
    for what in template.left_out:
        unasked = "reasoning" in what and formats.reasoning is None
        level = logging.INFO if unasked else logging.WARNING
        yield level, f"the chat template leaves out {what}"
    if template.tools_in_text:
        yield logging.INFO, "the chat template shows no tools: the system's message tells them"
    if unread:
        written = template.signs.call.strip()[:200]
        yield (
            logging.WARNING,
            f"the chat template writes calls in a notation of no known family ({written!r}): calls "
            "in answers come as content; name a parser by --tool-call-parser, if one reads them",
        )
