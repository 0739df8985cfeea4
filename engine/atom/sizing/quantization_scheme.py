"""QuantizationScheme: which of a model's matrices is stored in which format.

A checkpoint has a default and rules by module name, of which the first that matches decides; each
writer of checkpoints has its own way of naming modules (`NameMatch`). Pure. quantization_config.py
reads schemes from a config.json, online_quantization.py from the command line; model_facts.py asks
each matrix of each layer once.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from re import _constants, _parser  # type: ignore[attr-defined, unused-ignore]
from typing import Any

from atom.sizing.errors import ModelFactsError
from atom.sizing.quantization import Quantization

# Bounds of what one search may cost: a hostile config.json must not stop a start.
_MOST_REPEATS, _LONG_REPEAT = 8, 16
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
# A pattern that may tell one expert of a layer from another.
_ONE_EXPERT = re.compile(r"experts\W{0,3}[\d\[(\\]")


class NameMatch(enum.StrEnum):
    """Describe how a list of module names is meant."""

    PARTS = "parts"  # whole parts between dots, * for anything; re: before a regular expression
    SUBSTRING = "substring"  # AutoAWQ: any part of the name, wherever it begins and ends
    REGEX = "regex"  # GPTQModel: from the beginning of the name
    GLOB = "glob"  # Quark: the whole name, * for anything


@dataclass(frozen=True, slots=True)
class FormatRule:
    """Modules that one of `patterns` names are stored as `stored`, plain where it is None."""

    patterns: tuple[str, ...]
    stored: Quantization | None
    match: NameMatch = NameMatch.PARTS

    def names(self, aliases: Iterable[str]) -> bool:
        """Tell whether the rule is about a module, such as model.layers.3.mlp.down_proj, by any of
        its names."""
        return any(map(_matcher(self.match, self.patterns), aliases))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationScheme:
    """Chooses each module's quantisation: `rules` in the order in which they are asked; `default`
    of modules that none names, None where these are plain. `method`: the writer of the tensors, or
    "online"."""

    method: str
    default: Quantization | None
    rules: tuple[FormatRule, ...] = ()

    @property
    def formats(self) -> tuple[Quantization, ...]:
        """List every format that some matrix may have, the default first."""
        ruled = (rule.stored for rule in self.rules)
        found = (each for each in (self.default, *ruled) if each is not None)
        return tuple(dict.fromkeys(found))

    @property
    def online(self) -> bool:
        """Plain matrices become this while they are loaded."""
        return self.method == "online"

    def format_of(self, *aliases: str) -> Quantization | None:
        """Format of a module's matrix, None for the model's own element type; aliases: every name
        that the module goes by."""
        for rule in self.rules:
            if rule.names(aliases):
                return rule.stored
        return self.default

    def format_of_copies(self, copies: Iterator[tuple[str, ...]]) -> Quantization | None:
        """Format of matrices that are one here, by the aliases of each of them.

        Raises ModelFactsError where the scheme tells them apart.
        """
        first = next(copies)
        stored = self.format_of(*first)
        if not any(_ONE_EXPERT.search(pattern) for rule in self.rules for pattern in rule.patterns):
            return stored
        for aliases in copies:
            other = self.format_of(*aliases)
            if other != stored:
                raise ModelFactsError(
                    f"config.json: quantization_config stores {first[0]} as {stored or 'plain'} "
                    f"and {aliases[0]} as {other or 'plain'}; experts of a layer are one product "
                    "here: use a checkpoint that stores all of them alike",
                    field="quantization_config",
                )
        return stored

    def __str__(self) -> str:
        """Describe it, as in "fp8 with a scale per output (quark), int4 in groups of 32 (gptq) by
        name"."""
        first, *others = self.formats or ("plain",)
        return ", ".join([str(first), *(f"{each} by name" for each in others)])


@functools.lru_cache(maxsize=256)
def _matcher(match: NameMatch, patterns: tuple[str, ...]) -> Callable[[str], bool]:
    if match is NameMatch.SUBSTRING:
        return lambda module: any(pattern in module for pattern in patterns)
    if match is NameMatch.GLOB:
        whole = _union([fnmatch.translate(pattern) for pattern in patterns])
        return lambda module: whole is not None and whole.match(module) is not None
    if match is NameMatch.REGEX:
        begin = _union(list(patterns))
        return lambda module: begin is not None and begin.match(module) is not None
    return _parts_matcher(patterns)


def _parts_matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Plain names, of which checkpoints list hundreds, are looked up; others are searched for."""
    special = [pattern for pattern in patterns if pattern.startswith("re:") or "*" in pattern]
    plain = frozenset(patterns).difference(special)
    regexes = _union([pattern[3:] for pattern in special if pattern.startswith("re:")])
    starred = _union(
        [
            r"(?:.*\.)?" + re.escape(pattern).replace(r"\*", ".*") + r"(?:\.|$)"
            for pattern in special
            if not pattern.startswith("re:")
        ]
    )

    def matches(module: str) -> bool:
        if plain and not plain.isdisjoint(_runs_of_parts(module)):
            return True
        return any(found is not None and found.match(module) for found in (regexes, starred))

    return matches


def _runs_of_parts(module: str) -> Iterator[str]:
    """Yield every run of neighbouring parts of a dotted name: a, a.b, a.b.c, b, b.c, c."""
    parts = module.split(".")
    for first in range(len(parts)):
        for end in range(first + 1, len(parts) + 1):
            yield ".".join(parts[first:end])


def _union(patterns: list[str]) -> re.Pattern[str] | None:
    """Compile alternatives. Raises ModelFactsError naming the one that cannot be used."""
    for pattern in patterns:
        problem = _pattern_problem(pattern)
        if problem:
            raise ModelFactsError(
                f"config.json: quantization_config names modules by {pattern!r}, which {problem}; "
                "download config.json again, or name the modules",
                field="quantization_config",
            )
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None


def _pattern_problem(pattern: str) -> str:
    """Return why names are not searched by a pattern: "" for one whose search is short."""
    try:
        parsed = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression ({error})"
    repeats, nested = _repeats(parsed, inside=False)
    if nested or repeats > _MOST_REPEATS:
        return f"repeats within a repetition or more than {_MOST_REPEATS} times"
    return ""


def _repeats(parsed: Any, *, inside: bool) -> tuple[int, bool]:
    """Number of unbounded repetitions in what sre parsed, and whether one is within another."""
    found, nested = 0, False
    for operation, argument in parsed:
        repeat = operation in _REPEATS and argument[1] > _LONG_REPEAT
        found, nested = found + repeat, nested or (repeat and inside)
        for part in _parts_of(argument):
            more, deeper = _repeats(part, inside=inside or repeat)
            found, nested = found + more, nested or deeper
    return found, nested


def _parts_of(argument: Any) -> Iterator[Any]:
    """Yield every sequence of operations within an operation's argument."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for part in argument:
            yield from _parts_of(part)
