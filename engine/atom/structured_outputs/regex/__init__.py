"""Clients' regular expressions (ECMA-262's, as in JSON schema): parsed into a small tree, combined
as languages, and written as the grammar of a model's answers. Pure."""

from __future__ import annotations

from math import inf

from atom.structured_outputs.grammar_writer import GrammarWriter
from atom.structured_outputs.regex.grammar import Encoding, expression
from atom.structured_outputs.regex.search import matched
from atom.structured_outputs.regex.syntax import RegexError, shortest

__all__ = ["regex_to_grammar"]


def regex_to_grammar(text: str) -> str:
    """Return the grammar (EBNF, root rule `root`) of the texts that an expression matches from
    start to end. Raises ValueError with the part that is not supported, its place, and the
    alternative."""
    node = matched(text)
    if shortest(node) == inf:
        raise RegexError(f"no text matches the regular expression {text!r}; mend it")
    return GrammarWriter().text(expression(node, Encoding.TEXT))
