"""Grammars in Lark's notation: which texts are some, and the parts of it that a client may send.

The grammar library reads a variant of Lark. Its own additions (schemas and substrings within a
rule, tokens by name or id, options, other grammars) are refused by name: they would pass the checks
of the fields that are for them. Pure.
"""

from __future__ import annotations

import re

_PIECE = re.compile(
    r'(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?!/)(?:\\.|[^/\\\n])+/[imslux]*)|(?P<comment>(?://|#)[^\n]*)'
)
_RULE = re.compile(r"^[ \t]*[?!]?[A-Za-z_]\w*(?:\.-?\d+)?[ \t]*:(?!:)", re.MULTILINE)
_START = re.compile(r"^[ \t]*[?!]?start(?:\[[^\]\n]*\])?[ \t]*:", re.MULTILINE)
_REFUSED = (
    (re.compile(r"%(json|regex|llguidance|lark|declare|extend|override)\b"), "a directive %{}"),
    (re.compile(r"@(\w*)"), "another grammar @{}"),
    (re.compile(r"<([^>\n]{0,32})"), "a token <{}>"),
    (re.compile(r"^[ \t]*[?!]?[A-Za-z_]\w*\[([^\]\n]{0,32})", re.MULTILINE), "an attribute [{}]"),
)


def is_lark(grammar: str) -> bool:
    """Return whether a grammar is Lark's, by its rules: `start: …`, where GBNF has `root ::= …`."""
    bare = _bare(grammar)
    return "::=" not in bare and (_START.search(bare) or _RULE.search(bare)) is not None


def checked_lark(grammar: str) -> str:
    """Return the grammar. Raises ValueError for a part that is not the client's to write."""
    bare = _bare(grammar)
    for pattern, name in _REFUSED:
        found = pattern.search(bare)
        if found is not None:
            line = bare.count("\n", 0, found.start()) + 1
            raise ValueError(
                f"line {line} of the Lark grammar has {name.format(found[1])}, which is not taken "
                "here; write rules and terminals of texts and regular expressions"
            )
    if _START.search(bare) is None:
        raise ValueError("the Lark grammar has no rule start; name its whole answer start")
    return grammar


def _bare(grammar: str) -> str:
    """Replace texts, regular expressions and comments, so that their content is not read."""
    return _PIECE.sub(lambda found: "" if found["comment"] is not None else '""', grammar)
