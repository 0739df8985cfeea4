"""QuantizationScheme: the format in which each of a model's matrices is stored.

A checkpoint has a default and rules by module name, of which the first match applies; each writer
of checkpoints has its own way of naming modules (`NameMatch`). Pure. config.py reads
schemes from a config.json, online.py from the command line; model_facts.py looks up
each matrix of each layer once.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from atom.bounded_input.name_patterns import (
    NamePattern,
    NamePatternError,
    compile_patterns,
    glob_pattern,
)
from atom.sizing.errors import ModelFactsError
from atom.sizing.quantization.format import Quantization

_MOST_RULES = 4096  # a hostile config.json must not stop a start
_STARS = re.compile(r"[*?\[]")
# A pattern that may distinguish the experts of a layer.
_ONE_EXPERT = re.compile(r"experts\W{0,3}[\d\[(\\]")


class NameMatch(enum.StrEnum):
    """The interpretation of a list of module names."""

    PARTS = "parts"  # whole parts between dots, * for anything; re: before a regular expression
    SUBSTRING = "substring"  # AutoAWQ: any part of the name, wherever it begins and ends
    REGEX = "regex"  # GPTQModel: from the beginning of the name
    GLOB = "glob"  # Quark: the whole name, * for anything


@dataclass(frozen=True, slots=True)
class FormatRule:
    """A rule: modules that match one of `patterns` are stored as `stored`, unquantised if it is
    None."""

    patterns: tuple[str, ...]
    stored: Quantization | None
    match: NameMatch = NameMatch.PARTS

    def names(self, aliases: Iterable[str]) -> bool:
        """Return whether the rule matches a module, such as model.layers.3.mlp.down_proj, by any of
        its names."""
        return any(map(_matcher(self.match, self.patterns), aliases))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationScheme:
    """The quantisation of each module: `rules` in the order of their application; `default` for
    modules without a rule, None if these are unquantised. `method`: the writer of the tensors, or
    "online"."""

    method: str
    default: Quantization | None
    rules: tuple[FormatRule, ...] = ()

    def __post_init__(self) -> None:
        """Raise ModelFactsError for more rules than any checkpoint has."""
        if len(self.rules) > _MOST_RULES:
            raise ModelFactsError(
                f"config.json: quantization_config has {len(self.rules)} rules by name, of which "
                f"at most {_MOST_RULES} are read; list the modules of one format together",
                field="quantization_config",
            )

    @property
    def formats(self) -> tuple[Quantization, ...]:
        """List every format that some matrix may have, the default first."""
        ruled = (rule.stored for rule in self.rules)
        found = (each for each in (self.default, *ruled) if each is not None)
        return tuple(dict.fromkeys(found))

    @property
    def online(self) -> bool:
        """Return whether plain matrices are quantised as they are loaded."""
        return self.method == "online"

    def format_of(self, *aliases: str) -> Quantization | None:
        """Format of a module's matrix, None for the model's own element type; aliases: every name
        that the module goes by."""
        for rule in self.rules:
            if rule.names(aliases):
                return rule.stored
        return self.default

    def format_of_copies(self, copies: Iterator[tuple[str, ...]]) -> Quantization | None:
        """Return the format of matrices that are one matrix here, by the aliases of each of them.

        Raises ModelFactsError if the scheme gives them different formats.
        """
        first = next(copies)
        stored = self.format_of(*first)
        if not _tell_experts_apart(self.rules):
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

    @property
    def conversion(self) -> str:
        """Describe the conversions at load, "" without any."""
        return ", ".join(dict.fromkeys(each.conversion for each in self.formats if each.conversion))

    def __str__(self) -> str:
        """Describe the scheme, as in "fp8 with a scale per output (quark), int4 in groups of 32
        (gptq) by name"."""
        first, *others = self.formats or ("plain",)
        return ", ".join([str(first), *(f"{each} by name" for each in others)])


@functools.lru_cache(maxsize=16)
def _tell_experts_apart(rules: tuple[FormatRule, ...]) -> bool:
    """Return whether any pattern may name one expert of a layer."""
    return any(_ONE_EXPERT.search(pattern) for rule in rules for pattern in rule.patterns)


@functools.lru_cache(maxsize=_MOST_RULES)
def _matcher(match: NameMatch, patterns: tuple[str, ...]) -> Callable[[str], bool]:
    if match is NameMatch.SUBSTRING:
        return lambda module: any(pattern in module for pattern in patterns)
    if match is NameMatch.GLOB:
        plain = frozenset(pattern for pattern in patterns if not _STARS.search(pattern))
        whole = _compiled(glob_pattern(pattern) for pattern in patterns if pattern not in plain)
        return lambda module: module in plain or any(each.matches(module) for each in whole)
    if match is NameMatch.REGEX:
        begin = _compiled(patterns)
        return lambda module: any(each.matches(module) for each in begin)
    return _parts_matcher(patterns)


def _parts_matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a matcher. Plain names, of which checkpoints list hundreds, are looked up; other
    patterns are searched."""
    special = [pattern for pattern in patterns if pattern.startswith("re:") or "*" in pattern]
    plain = frozenset(patterns).difference(special)
    searched = _compiled(
        pattern[3:]
        if pattern.startswith("re:")
        else r"(?:.*\.)?" + re.escape(pattern).replace(r"\*", ".*") + r"(?:\.|$)"
        for pattern in special
    )

    def matches(module: str) -> bool:
        if plain and not plain.isdisjoint(_runs_of_parts(module)):
            return True
        return any(each.matches(module) for each in searched)

    return matches


def _runs_of_parts(module: str) -> Iterator[str]:
    """Yield every run of neighbouring parts of a dotted name: a, a.b, a.b.c, b, b.c, c."""
    parts = module.split(".")
    for first in range(len(parts)):
        for end in range(first + 1, len(parts) + 1):
            yield ".".join(parts[first:end])


def _compiled(patterns: Iterable[str]) -> tuple[NamePattern, ...]:
    """Compile patterns. Raises ModelFactsError naming the one that cannot be used."""
    try:
        return compile_patterns(patterns)
    except NamePatternError as error:
        raise ModelFactsError(
            f"config.json: quantization_config names modules by a pattern: {error}; download "
            "config.json again, or name the modules",
            field="quantization_config",
        ) from None
