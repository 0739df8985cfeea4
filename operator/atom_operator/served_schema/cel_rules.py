"""Evaluate the x-kubernetes-validations of a schema, with Kubernetes' own functions. Pure.

celpy (cel-python) parses and evaluates; this module adds the types that a schema gives to values
and the functions of the quantity library that the rules use
(https://kubernetes.io/docs/reference/using-api/cel/#kubernetes-quantity-library).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from atom_operator.domain import FieldProblem
from atom_operator.domain.resources import exact_quantity

Schema = Mapping[str, Any]


def rule_problems(schema: Schema, value: Any, path: str) -> Iterator[FieldProblem]:
    """Yield a problem for each rule at `path` and below that `value` breaks. `value` is in its
    stored form and has the structure of `schema`."""
    rules = schema.get("x-kubernetes-validations", ())
    if rules:
        itself = _typed(schema, value)
        for rule in rules:
            if not _holds(rule["rule"], itself):
                yield FieldProblem(path, rule["message"])
    if isinstance(value, Mapping):
        fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            below = fields.get(name, rest)
            if below is not None:
                yield from rule_problems(below, item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and "items" in schema:
        for position, item in enumerate(value):
            yield from rule_problems(schema["items"], item, f"{path}[{position}]")


def _holds(rule: str, itself: Any) -> bool:
    """Return whether the rule is true; a rule that cannot be evaluated is broken, as in an API
    server."""
    try:
        return bool(_program(rule).evaluate({"self": itself}))
    except CELEvalError:
        return False


@cache
def _program(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(
        environment.compile(rule),
        functions={"quantity": _quantity, "isGreaterThan": _is_greater_than},
    )


def _quantity(text: celtypes.Value) -> celtypes.Value:
    """Check the text and hand it on: celpy has no type for quantities."""
    if _exact(text) is None:
        raise CELEvalError("no quantity")
    return text


def _is_greater_than(one: celtypes.Value, other: celtypes.Value) -> celtypes.Value:
    left, right = _exact(one), _exact(other)
    assert left is not None  # `quantity` has checked both
    assert right is not None
    return celtypes.BoolType(left > right)


def _exact(text: celtypes.Value) -> Fraction | None:
    sign, digits = (-1, str(text)[1:]) if str(text).startswith("-") else (1, str(text))
    found = exact_quantity(digits.removeprefix("+"))
    return None if found is None else sign * found


def _typed(schema: Schema, value: Any) -> Any:
    """Convert the value to CEL's types, those of its schema rather than of its spelling."""
    if isinstance(value, Mapping):
        fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
        return celtypes.MapType(
            {
                celtypes.StringType(name): _typed(fields.get(name, rest) or {}, item)
                for name, item in value.items()
            }
        )
    if isinstance(value, list):
        return celtypes.ListType([_typed(schema.get("items") or {}, item) for item in value])
    if schema.get("type") == "number":
        return celtypes.DoubleType(value)
    if schema.get("type") == "integer":
        return celtypes.IntType(int(value))
    return json_to_cel(value)
