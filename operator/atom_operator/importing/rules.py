"""Rules by which the fields of an object are translated, and the walk that applies them.

A kind of input is a table from the names of its fields to rules. The walk visits every field of the
input, so a field that no table has is reported too: nothing is lost without a finding. Null is no
value, as in Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from atom_operator.importing.results import (
    Finding,
    Result,
    Setting,
    TranslationError,
    Verdict,
)
from atom_operator.importing.results import left as left_finding


@dataclass(frozen=True, slots=True)
class At:
    """A value of the input and its path."""

    where: str
    value: Any

    def below(self, name: str) -> At:
        """Return a field of this object, None if it has none."""
        fields = self.object()
        return At(join(self.where, name), fields.get(name))

    def object(self) -> Mapping[str, Any]:
        """Return the value as an object. Raises `TranslationError` if it is none."""
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            raise self.wrong("an object")
        return self.value

    def items(self) -> list[At]:
        """Return the items of a list. Raises `TranslationError` if the value is none."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [At(f"{self.where}[{index}]", item) for index, item in enumerate(self.value)]

    def text(self) -> str:
        """Return a scalar as text. Raises `TranslationError` for a list or an object."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        if not isinstance(self.value, (str, int, float)):
            raise self.wrong("a text")
        return str(self.value)

    def wrong(self, wanted: str) -> TranslationError:
        """Return the error about a value of another type."""
        found = type(self.value).__name__
        return TranslationError(
            f"{self.where}: must be {wanted}, and is of type {found}; correct it"
        )


Rule: TypeAlias = Callable[[At], Iterable[Result]]
Rules: TypeAlias = Mapping[str, Rule]

_WHOLE = re.compile(r"[0-9]+")


def join(where: str, name: str) -> str:
    """Return the path of a field."""
    return f"{where}.{name}" if where else name


def walk(at: At, rules: Rules, hidden: frozenset[str] = frozenset()) -> Iterator[Result]:
    """Apply the rules to every field of an object. hidden: fields that the caller has read."""
    for name, value in at.object().items():
        if value is None or name in hidden:
            continue
        field = At(join(at.where, str(name)), value)
        yield from rules.get(str(name), _unknown)(field)


def _unknown(at: At) -> Iterator[Result]:
    yield left_finding(at.where, "this version of the import does not know the field; look it up")


def into(rules: Rules) -> Rule:
    """Apply a table to the fields of an object."""
    return lambda at: walk(at, rules)


def mapped(path: str) -> Rule:
    """Take the value over as it is."""

    def rule(at: At) -> Iterator[Result]:
        yield Setting(path, at.value, at.where)

    return rule


def number(path: str) -> Rule:
    """Take a whole number over, also if it is written as text."""

    def rule(at: At) -> Iterator[Result]:
        value = at.value
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        yield Setting(path, value, at.where)

    return rule


def left(remedy: str) -> Rule:
    """Report a field without a counterpart."""
    return _report(Verdict.LEFT, remedy)


def unneeded(reason: str) -> Rule:
    """Report a field that has nothing to set here."""
    return _report(Verdict.UNNEEDED, reason)


def unless_empty(rule: Rule) -> Rule:
    """Skip a value that a chart takes for unset: an empty text, list or object."""
    return lambda at: () if at.value in ("", [], {}) else rule(at)


def _report(verdict: Verdict, text: str) -> Rule:
    def rule(at: At) -> Iterator[Result]:
        yield Finding(at.where, verdict, text)

    return rule
