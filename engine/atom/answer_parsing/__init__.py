"""Parse an answer's text into the parts that the API shows: content, reasoning, tool calls. Pure,
torch-free.

Parsers take text in pieces of any size and return events; the cuts between pieces do not change the
events. Each checkpoint's family writes tool calls and reasoning in its own markup, which is
detected from its chat template (`tool_parsers`). Knows neither tokens nor HTTP; called by the chat
endpoint.
"""

from atom.answer_parsing.answer_parser import AnswerParser, AnswerParsing
from atom.answer_parsing.events import CallArguments, CallStart, Content, Event, Reasoning
from atom.answer_parsing.tool_parsers import AddedTokens, AnswerFormats, resolve_formats

__all__ = [
    "AddedTokens",
    "AnswerFormats",
    "AnswerParser",
    "AnswerParsing",
    "CallArguments",
    "CallStart",
    "Content",
    "Event",
    "Reasoning",
    "resolve_formats",
]
