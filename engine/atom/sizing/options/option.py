"""How an option is declared: a field of a dataclass, with its default, text, range and flag.

    max_num_seqs: int = option(512, "most requests that generate at once", within=Range(1))

A part (`SchedulerOptions`, `CacheOptions` …) is a frozen dataclass of such fields, so its values
are typed attributes. `options_of` lists the declarations of a part: the command line, the check of
ranges, the operator's CRD fields and its container arguments are derived from them. Standard
library only; it parses nothing and knows no option.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, Protocol, TypeVar

T = TypeVar("T")
_KEY: Final = "option"


class Limits(Protocol):
    """The values that an option may have."""

    def problem(self, name: str, value: Any) -> str | None:
        """Return the error in a value of the option `name`; None if it is valid."""
        ...


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `least` to `most`, both included; None for no upper bound. above: `least` itself
    is excluded. step: besides `least` only the multiples of it are valid."""

    least: float
    most: float | None = None
    above: bool = False
    step: int = 1

    def problem(self, name: str, value: float) -> str | None:
        """Return the error in a number, which has `name`; None if the range includes it."""
        upper = math.inf if self.most is None else self.most
        within = self.least <= value <= upper and value < math.inf
        if within and self.above:
            within = value > self.least
        if within and (value == self.least or self.step == 1 or not value % self.step):
            return None
        return f"{name} must be {self}, got {value}"

    def __str__(self) -> str:
        if self.step != 1:
            return f"{self.least:g} or a multiple of {self.step}"
        if self.above and self.most is None:
            return f"more than {self.least:g}"
        if self.above:
            return f"in ({self.least:g}, {self.most:g}]"
        if self.most is not None:
            return f"within {self.least:g} to {self.most:g}"
        return f"at least {self.least:g}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Names, one of which the option has. remedy: the names as an error lists them."""

    names: tuple[str, ...]
    remedy: str

    def problem(self, name: str, value: str) -> str | None:
        """Return the error in a value of the option `name`; None if it is one of the names."""
        if value in self.names:
            return None
        return f"unknown {name} {value!r}; use {self.remedy}"


@dataclass(frozen=True, slots=True)
class Companion:
    """A flag that the help page lists after the flag of an option. It has no option of its own.
    dest: the option that it sets; None for a flag that the command line itself reads."""

    name: str
    text: str
    metavar: str
    read: Callable[[str], Any] | None = None
    dest: str | None = None


@dataclass(frozen=True, slots=True)
class Flag:
    """The flag of an option, where it differs from the usual one. name: if it is not the option's
    own. short: a further spelling. metavar: of its value in the help. read: text → value, if the
    field's type does not imply it. choices: the only words, if the type does not name them. many:
    whether several words follow one flag ("words"), or the flag may be given several times
    ("append"). then: flags that the help lists after it."""

    name: str | None = None
    short: str | None = None
    metavar: str | None = None
    read: Callable[[str], Any] | None = None
    choices: tuple[str, ...] = ()
    many: Literal["words", "append"] | None = None
    then: tuple[Companion, ...] = ()


@dataclass(frozen=True, slots=True)
class CrdField:
    """The field of the AtomDeployment that sets an option. path: below spec, such as
    engine.maxNumSeqs; None if the operator itself decides the flag. text: of the CRD, where
    {default} is the default; empty if the field is declared in the CRD's own models, and its value
    is not the option's. most: the highest number that the CRD accepts, if the engine accepts more.
    default: of the field, if it is not the engine's. stated: pods have the flag with the default
    too; else only with another value."""

    path: str | None
    text: str = ""
    most: int | None = None
    default: Any = None
    stated: bool = False


@dataclass(frozen=True, slots=True)
class _Declared:
    text: str
    keyword: str | None
    flag: Flag
    within: Limits | None
    crd: CrdField | None
    variable: str | None


@dataclass(frozen=True, slots=True)
class Option:
    """An option as declared. name: its keyword in Python and its key in a YAML file; part: the
    dataclass with it; attribute: its field there; kind: the type of its value, with None if the
    engine may derive it. variable: an environment variable that gives the default."""

    name: str
    part: type
    attribute: str
    kind: Any
    default: Any
    text: str
    flag: Flag
    within: Limits | None
    crd: CrdField | None
    variable: str | None

    @property
    def flag_name(self) -> str:
        """Return the flag, such as --max-num-seqs."""
        return self.flag.name or "--" + self.name.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Return every spelling of the flag, and of its negation if it is a switch."""
        name, short = self.flag_name, self.flag.short
        negation = (f"--no-{name[2:]}",) if self.value_type is bool else ()
        return (name, *negation, *(() if short is None else (short,)))

    @property
    def value_type(self) -> Any:
        """Return the type of a value that is not None."""
        return _without_none(self.kind)

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the only words of the flag; empty if it takes others."""
        named = typing.get_args(self.value_type) if _is_literal(self.value_type) else ()
        return self.flag.choices or named

    def problem(self, value: Any, *, by_flag: bool = False) -> str | None:
        """Return the error in a value; None if it is valid. by_flag: the error names the flag, and
        not the keyword."""
        if value is None or self.within is None:
            return None
        return self.within.problem(self.flag_name if by_flag else self.name, value)


def option(
    default: T,
    text: str,
    *,
    keyword: str | None = None,
    flag: Flag | None = None,
    within: Limits | None = None,
    crd: CrdField | None = None,
    variable: str | None = None,
) -> T:
    """Declare a field as an option. text: for the help page. keyword: its name for users, if the
    field's differs. crd: the field of the AtomDeployment that sets it. A mapping as the default is
    empty."""
    declared = _Declared(text, keyword, flag or Flag(), within, crd, variable)
    given: dict[str, Any] = (
        {"default_factory": dict} if isinstance(default, dict) else {"default": default}
    )
    declaration: Any = dataclasses.field(metadata={_KEY: declared}, **given)
    return typing.cast(T, declaration)


def required(text: str, *, flag: Flag | None = None, crd: CrdField | None = None) -> Any:
    """Declare a field as an option without a default."""
    return dataclasses.field(
        metadata={_KEY: _Declared(text, None, flag or Flag(), None, crd, None)}
    )


def options_of(part: type) -> tuple[Option, ...]:
    """Return the options that a dataclass declares, in the order of its fields."""
    kind: Any = part  # mypy takes the classes of dataclasses for unhashable ones
    return _options_of(kind)


@cache
def _options_of(part: Any) -> tuple[Option, ...]:
    return tuple(_options(part))


def _options(part: Any) -> Iterator[Option]:
    kinds = typing.get_type_hints(part)
    for field in dataclasses.fields(part):
        declared: _Declared | None = field.metadata.get(_KEY)
        if declared is None:
            continue
        default: Any = None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            default = field.default
        yield Option(
            name=declared.keyword or field.name,
            part=part,
            attribute=field.name,
            kind=kinds[field.name],
            default=default,
            text=declared.text,
            flag=declared.flag,
            within=declared.within,
            crd=declared.crd,
            variable=declared.variable,
        )


def sorted_into(part: type[T], values: dict[str, Any]) -> T:
    """Build a part from the values whose keywords it declares, which are removed from `values`."""
    own = {each.name: each.attribute for each in options_of(part)}
    return part(**{own[name]: values.pop(name) for name in own.keys() & values.keys()})


def range_problems(part: Any, *, by_flag: bool = False) -> Iterator[str]:
    """Yield the errors of a part's values that are outside the range of their option. Values that
    are no part of the options have none."""
    if not dataclasses.is_dataclass(part):
        return
    kind: Any = type(part)
    for each in options_of(kind):
        problem = each.problem(getattr(part, each.attribute), by_flag=by_flag)
        if problem is not None:
            yield problem


@cache
def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    rest = [each for each in typing.get_args(kind) if each is not type(None)]
    return rest[0] if len(rest) == 1 else kind


def _is_literal(kind: Any) -> bool:
    return typing.get_origin(kind) is Literal
