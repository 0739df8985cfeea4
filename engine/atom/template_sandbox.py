"""The Jinja environment that chat templates run in: transformers' own, within bounds of work.

A template is a program of the model's author. Jinja's sandbox protects the process from it. The
bounds here keep a template from running or growing without end: loops and macros are counted; the
input and output of each operation are bounded before it runs, and added up
(bounded_input/template_work.py); and a render has a deadline. This module knows no messages. Called
by chat_template.
"""

from __future__ import annotations

import contextvars
import datetime
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from atom.bounded_input.template_calls import (
    bound_call,
    bound_fields,
    bound_filter,
    bound_power,
    bound_times,
)
from atom.bounded_input.template_work import BoundsError, TemplateWork, bound, refuse

OWN_NAMES = "_atom_"  # the prefix of names added to a template
_COUNTED, _CALLED, _JOINED, _SIZED = (
    f"{OWN_NAMES}{name}" for name in ("counted", "called", "joined", "sized")
)
# Of JSON, an indent or a separator: each level of a value holds its own before any is counted.
_MOST_BETWEEN = 1_000


class TemplateBoundsError(jinja2.TemplateError):
    """A template does more than any conversation needs."""


_work: contextvars.ContextVar[TemplateWork] = contextvars.ContextVar("template_work")


def render_within_bounds(
    template: jinja2.Template,
    variables: dict[str, Any],
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Render the template; raises `TemplateBoundsError`, and any error that the template raises."""
    token = _work.set(TemplateWork(clock))
    try:
        pieces, characters = [], 0
        for piece in template.generate(variables):
            characters += len(piece)
            bound(characters)
            pieces.append(piece)
        return "".join(pieces)
    except BoundsError as error:
        raise TemplateBoundsError(str(error)) from None
    finally:
        _work.reset(token)


@functools.cache  # a template is compiled and looked into by the same one
def template_environment() -> jinja2.Environment:
    """Return transformers' environment for chat templates, with bounds on the work of a render."""
    environment = _BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _GenerationBlocks],
        finalize=_shown,
    )
    environment.filters["tojson"] = _to_json
    environment.filters = {
        name: _bounded_filter(name, function) for name, function in environment.filters.items()
    }
    environment.filters |= {_COUNTED: _counted, _SIZED: _sized}
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": strftime_now,
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
        """Allow templates to use a list as a queue, as Kimi K2's do; steps bound it."""
        queues = attr in ("append", "pop") and type(obj) is list
        return queues or super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        found = _Counting(self).visit(tree)
        assert isinstance(found, nodes.Template)
        return found

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _bound_operation(operator, left, right)
        return _sized(super().call_binop(context, operator, left, right))

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        # The sandbox's wrapper of a text's format method has the method's name.
        name, method = getattr(obj, "__name__", ""), getattr(obj, "__wrapped__", obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, (str, int, float, bytes, list, tuple, dict)):
            _work.get().read((owner, *args, *kwargs.values()))
            bound_call(name, owner, (*args, *kwargs.values()))
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

    def visit_List(self, node: nodes.List) -> Any:  # noqa: N802 (Jinja's name)
        return self._measured(node)

    def visit_Dict(self, node: nodes.Dict) -> Any:  # noqa: N802 (Jinja's name)
        return self._measured(node)

    def visit_Tuple(self, node: nodes.Tuple) -> Any:  # noqa: N802 (Jinja's name)
        return self._measured(node) if node.ctx == "load" else node

    def _measured(self, node: nodes.Expr) -> Any:
        self.generic_visit(node)
        return self._placed(nodes.Filter(node, _SIZED, [], [], None, None), node)

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
    bound(_work.get().read(parts))
    return "".join(map(str, parts))


def _shown(value: Any) -> Any:
    """Bound the size of a value that is about to become text."""
    work = _work.get(None)
    if work is not None and not isinstance(value, str):
        bound(work.read((value,)))
    return value


def _sized(value: Any) -> Any:
    return _work.get().take(value)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        size = _work.get().read(values)
        bound_filter(name, size, tuple(each for each in values if not _is_environment(each)))
        return _sized(function(*args, **kwargs))

    return bounded


def _is_environment(value: Any) -> bool:
    return isinstance(value, (jinja2.Environment, jinja2.nodes.EvalContext, jinja2.runtime.Context))


def _bound_operation(operator: str, left: Any, right: Any) -> None:
    _work.get().read((left, right))
    if operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
                bound_times(sequence, count)
    if operator == "**" and isinstance(right, (int, float)):
        bound_power(left, right)
    if operator == "%" and isinstance(left, str):
        bound_fields(left, right if isinstance(right, tuple) else (right,))


class _GenerationBlocks(jinja2.ext.Extension):
    """Reads {% generation %} … {% endgeneration %}: marks for training, transparent here."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without escapes for HTML; Jinja's own filter escapes it, which no model was
    trained on."""
    between = (indent, *(separators or ()))
    if any((len(each) if isinstance(each, str) else each or 0) > _MOST_BETWEEN for each in between):
        refuse(f"it indents or separates JSON by more than {_MOST_BETWEEN:,} characters")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )
    if indent is None and separators is None:
        return encoder.encode(value)
    # Indents and separators make more of it than the value has, so they are counted as they come.
    parts, size = [], 0
    for part in encoder.iterencode(value):
        size += len(part)
        bound(size)
        parts.append(part)
    return "".join(parts)


def _listed(value: Any) -> list[Any]:
    """List the items that a filter such as `map` makes. Raises TypeError for a value that is not
    JSON."""
    if not isinstance(value, Iterator):
        raise TypeError(f"{type(value).__name__} is no value of JSON")
    return list(_steps(value))


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def strftime_now(format: str) -> str:
    """Write the local time, as templates ask for it."""
    return datetime.datetime.now().strftime(format)
