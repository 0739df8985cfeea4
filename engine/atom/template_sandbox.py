"""The Jinja environment that chat templates run in: transformers' own, within bounds of work.

A template is a program of the model's author. The sandbox keeps it from the process; what is added
here keeps it from running or growing without end: loops and macros are counted, texts and lists
that it makes are bounded, and a render has a deadline. Knows no messages. Called by chat_template.
"""

from __future__ import annotations

import contextvars
import datetime
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_STEPS = 2_000_000  # turns of loops and calls of macros
MOST_CHARACTERS = 1 << 26  # of a text, items of a list
_MOST_NUMBER = 1_000_000  # that a width, a count or an exponent may be
_DEADLINE_SECONDS = 10.0
_CHECK_EVERY = 256  # steps between looks at the clock
_WIDE_FIELD = re.compile(r"\d{7,}")
OWN_NAMES = "_atom_"  # how what is added to a template begins
_COUNTED, _CALLED, _JOINED, _SIZED = (
    f"{OWN_NAMES}{name}" for name in ("counted", "called", "joined", "sized")
)


class TemplateBoundsError(jinja2.TemplateError):
    """A template does more than any conversation needs."""


@dataclass(slots=True)
class _Work:
    """Hold what one render may still do."""

    clock: Callable[[], float]
    deadline: float
    steps: int = field(default=0)

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TemplateBoundsError(f"it takes more than {MOST_STEPS:,} steps")
        if self.steps % _CHECK_EVERY == 0 and self.clock() > self.deadline:
            raise TemplateBoundsError(f"it takes more than {_DEADLINE_SECONDS:g} seconds")


_work: contextvars.ContextVar[_Work] = contextvars.ContextVar("template_work")


def render_within_bounds(
    template: jinja2.Template,
    variables: dict[str, Any],
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """The template's text; raises `TemplateBoundsError`, and what the template itself raises."""
    token = _work.set(_Work(clock, clock() + _DEADLINE_SECONDS))
    try:
        pieces, characters = [], 0
        for piece in template.generate(variables):
            characters += len(piece)
            _bound(characters)
            pieces.append(piece)
        return "".join(pieces)
    finally:
        _work.reset(token)


@functools.cache  # a template is compiled and looked into by the same one
def template_environment() -> jinja2.Environment:
    """Return what transformers gives a template, within bounds."""
    environment = _BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlocks]
    )
    environment.filters["tojson"] = _to_json
    environment.filters = {
        name: _bounded_filter(name, function) for name, function in environment.filters.items()
    }
    environment.filters |= {_COUNTED: _counted, _SIZED: _sized}
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        _CALLED: _called,
        _JOINED: _joined,
    }
    del environment.globals["lipsum"]  # words without end
    return environment


def mentions(source: str, name: str) -> bool:
    """Return whether a template looks at an attribute or a key of this name; comments do not
    count."""
    tree = template_environment().parse(source)
    attributes = (node.attr for node in tree.find_all(nodes.Getattr))
    keys = (node.value for node in tree.find_all(nodes.Const))
    return name in attributes or name in keys


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Let templates keep a queue in a list of their own: Kimi K2's do, and steps bound it."""
        queues = attr in ("append", "pop") and type(obj) is list
        return queues or super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        found = _Counting(self).visit(tree)
        assert isinstance(found, nodes.Template)
        return found

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
                    _bound(len(sequence) * max(count, 0))
        if operator == "**" and isinstance(right, (int, float)) and abs(right) > 1000:
            raise TemplateBoundsError(f"it takes a number to the power of {right}")
        if operator == "%" and isinstance(left, str):
            _bound_fields(left, right)
        return _sized(super().call_binop(context, operator, left, right))

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        name, owner = getattr(obj, "__name__", ""), getattr(obj, "__self__", None)
        if isinstance(owner, str):
            _bound_text_call(name, owner, args, kwargs)
        return _sized(super().call(context, obj, *args, **kwargs))


class _Counting(NodeTransformer):
    """Counts every loop and macro of a template, and measures every text that is put together."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> Any:  # noqa: N802 (Jinja's name)
        self.generic_visit(node)
        node.iter = self._placed(nodes.Filter(node.iter, _COUNTED, [], [], None, None), node)
        return node

    def visit_Macro(self, node: nodes.Macro) -> Any:  # noqa: N802 (Jinja's name)
        self.generic_visit(node)
        call = nodes.Call(nodes.Name(_CALLED, "load"), [], [], None, None)
        node.body.insert(0, self._placed(nodes.Output([call]), node))
        return node

    def visit_Concat(self, node: nodes.Concat) -> Any:  # noqa: N802 (Jinja's name)
        self.generic_visit(node)
        call = nodes.Call(nodes.Name(_JOINED, "load"), list(node.nodes), [], None, None)
        return self._placed(call, node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> Any:  # noqa: N802 (Jinja's name)
        self.generic_visit(node)
        sized = nodes.Filter(node.filter, _SIZED, [], [], None, None)
        node.filter = self._placed(sized, node)
        return node

    def _placed(self, made: Any, like: nodes.Node) -> Any:
        made.set_lineno(like.lineno)
        made.set_environment(self._environment)
        return made


def _counted(items: Any) -> Any:
    """Count each of the items as a step."""
    if isinstance(items, (str, list, tuple, dict, range)):
        return _CountedItems(items)
    return items if isinstance(items, jinja2.Undefined) else _steps(items)


class _CountedItems:
    """Items whose number is known, as `loop.length` and `loop.last` ask for it."""

    __slots__ = ("_items",)

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return _steps(self._items)


def _steps(items: Iterable[Any]) -> Iterator[Any]:
    work = _work.get()
    for item in items:
        work.step()
        yield item


def _called() -> str:
    _work.get().step()
    return ""


def _joined(*parts: Any) -> str:
    texts = [str(part) for part in parts]
    _bound(sum(map(len, texts)))
    return "".join(texts)


def _sized(value: Any) -> Any:
    if isinstance(value, (str, list, tuple, dict)):
        _bound(len(value))
    return value


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        texts = [value for value in args if isinstance(value, str)]
        if name in ("center", "indent", "batch", "slice", "wordwrap"):
            _bound_numbers((*args, *kwargs.values()))
        if name == "replace" and len(texts) >= 3:
            _bound_replacement(*texts[:3])
        if name == "format" and texts:
            _bound_fields(texts[0], args[1:])
        return _sized(function(*args, **kwargs))

    return bounded


def _bound_text_call(name: str, text: str, args: Any, kwargs: Any) -> None:
    """A text's own method, before it makes what is too large to be made."""
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        _bound_numbers((*args, *kwargs.values()))
    elif name == "replace" and len(args) >= 2 and all(isinstance(arg, str) for arg in args[:2]):
        _bound_replacement(text, args[0], args[1])
    elif name in ("format", "format_map"):
        _bound_fields(text, (*args, *kwargs.values()))


def _bound_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > _MOST_NUMBER:
            raise TemplateBoundsError(f"it asks for a width or a count of {value}")


def _bound_replacement(text: str, old: str, new: str) -> None:
    _bound(len(text) + text.count(old) * len(new))


def _bound_fields(pattern: str, values: Any) -> None:
    """Widths of fields stand in the pattern, or come with the values."""
    if _WIDE_FIELD.search(pattern):
        raise TemplateBoundsError("it formats a field of more than a million characters")
    if "*" in pattern or "{" in pattern:
        _bound_numbers(values if isinstance(values, tuple) else (values,))


def _bound(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise TemplateBoundsError(f"it makes more than {MOST_CHARACTERS:,} characters or items")


class _GenerationBlocks(jinja2.ext.Extension):
    """Reads {% generation %} … {% endgeneration %}: marks for training, transparent here."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """List the items that a filter such as `map` makes. Raises TypeError for what is no JSON."""
    if not isinstance(value, Iterator):
        raise TypeError(f"{type(value).__name__} is no value of JSON")
    return list(_steps(value))


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
