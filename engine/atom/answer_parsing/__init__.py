"""An answer's text to what the API shows of it: content, reasoning, tool calls. Pure, torch-free.

Parsers take text in whatever pieces it comes and give events; how a text is cut changes nothing.
Each checkpoint's family writes tool calls and reasoning in its own markup, which its chat template
tells (`tool_parsers`). Knows neither tokens nor HTTP; called by the chat endpoint.
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
