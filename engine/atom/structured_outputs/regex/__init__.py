"""Regular expressions as clients write them (ECMA-262's, as JSON schema says): parsed into a small
tree, put together as languages, and written as the grammar of what a model may say. Pure."""

from __future__ import annotations

from math import inf

from atom.structured_outputs.grammar_writer import GrammarWriter
from atom.structured_outputs.regex.grammar import Encoding, expression
from atom.structured_outputs.regex.search import matched
from atom.structured_outputs.regex.syntax import RegexError, shortest

__all__ = ["regex_to_grammar"]


def regex_to_grammar(text: str) -> str:
    """The grammar (EBNF, root rule `root`) of the texts that an expression matches from start to
    end. Raises ValueError: what is not kept, where, and what to write instead."""
    node = matched(text)
    if shortest(node) == inf:
        raise RegexError(f"no text matches the regular expression {text!r}; mend it")
    return GrammarWriter().text(expression(node, Encoding.TEXT))
