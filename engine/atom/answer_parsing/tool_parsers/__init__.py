"""Which notation a model answers in: by the names of vLLM's parsers, or found in its chat template
and vocabulary.

`auto` takes what these leave no doubt about, and otherwise nothing: an answer is then passed on as
it is. Resolved once, when a server starts. One file here for each family's notation.
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
