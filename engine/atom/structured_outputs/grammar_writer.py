"""GrammarWriter: rules of one grammar in xgrammar's EBNF, written once each, and its literals.

Knows neither schemas nor expressions. Refuses a grammar that grows past its bound. Pure.
"""

from __future__ import annotations

import json

MAX_GRAMMAR_BYTES = 2 << 20


class GrammarTooLargeError(ValueError):
    """The grammar is too large; the message tells the client the remedy."""


class GrammarWriter:
    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._by_body: dict[str, str] = {}
        self._size = 0

    def reserve(self, hint: str) -> str:
        """Return the name of a rule that is written later; recursive rules need it."""
        name = f"{hint}{len(self._rules)}"
        self._rules[name] = ""
        return name

    def write(self, name: str, body: str) -> None:
        self._rules[name] = body
        self._size += len(body) + len(name)
        if self._size > MAX_GRAMMAR_BYTES:
            raise GrammarTooLargeError(
                "its grammar grows too large; make it smaller: fewer alternatives and optional "
                "parts, shorter lists of values"
            )

    def rule(self, hint: str, body: str) -> str:
        """Return the name of the rule with this body, which is written only once."""
        name = self._by_body.get(body)
        if name is None:
            name = self._by_body[body] = self.reserve(hint)
            self.write(name, body)
        return name

    def text(self, root: str) -> str:
        """Write the grammar, with an expression for the whole answer."""
        rules = [f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._rules.items())]
        return "\n".join(rules) + "\n"


def quoted(text: str) -> str:
    """Write a text as a literal of the grammar, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False)


def one_of(options: list[str]) -> str:
    """Write alternatives, in parentheses if there are several."""
    unique = list(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else "(" + " | ".join(unique) + ")"


def counted(body: str, low: int, high: int | None) -> str:
    """Write an element `body` low to high times."""
    if (low, high) == (1, 1):
        return body
    if (low, high) == (0, 1):
        return f"{body}?"
    if high is None and low < 2:
        return body + ("+" if low else "*")
    return f"{body}{{{low},{'' if high is None else high}}}"
