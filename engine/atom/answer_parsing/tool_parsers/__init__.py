"""Select the notation of a model's answers: by the names of vLLM's parsers, or by its chat template
and vocabulary.

`auto` selects a notation only if the template and vocabulary leave no doubt; otherwise an answer is
passed on unchanged. Resolved once, when a server starts. Each family's notation has one file here.
"""

from atom.answer_parsing.tool_parsers.formats import (
    AUTO,
    NONE,
    AddedTokens,
    AnswerFormats,
    CallFormat,
    ReasoningFormat,
)
from atom.answer_parsing.tool_parsers.recognition import resolve_formats
from atom.answer_parsing.tool_parsers.table import (
    CALL_PARSERS,
    HARMONY,
    PLAIN_JSON,
    REASONING_PARSERS,
)

__all__ = [
    "AUTO",
    "CALL_PARSERS",
    "HARMONY",
    "NONE",
    "PLAIN_JSON",
    "REASONING_PARSERS",
    "AddedTokens",
    "AnswerFormats",
    "CallFormat",
    "ReasoningFormat",
    "resolve_formats",
]
