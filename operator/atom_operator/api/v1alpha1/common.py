"""Shared parts of the spec and status models: a frozen base, CEL rules, and memory quantities.

The models are the source of the CRD (api/crd.py): field docstrings become descriptions, so they are
written for `kubectl explain`.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

# As Kubernetes reads a size; parts of a byte (500m) are none.
QUANTITY_PATTERN = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[kMGTPE]|[eE]\+?[0-9]{1,2})?$"
_QUANTITY = re.compile(r"^\+?([0-9.]+)([KMGTPE]i|[kMGTPE]|[eE]\+?[0-9]+)?$")
_POWERS = {unit: power for power, unit in enumerate("kMGTPE", start=1)}
_LARGEST = 2**63 - 1  # of a quantity


class ApiModel(BaseModel):
    """Frozen, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


def keyed_by(name: str) -> dict[str, Any]:
    """Build the json_schema_extra of a list whose items are identified by one of their fields."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [name]}


def cel_rule(rule: str, message: str) -> dict[str, Any]:
    """Build one x-kubernetes-validations entry; the message states the accepted range."""
    return {"rule": rule, "message": message}


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """Build the json_schema_extra of CEL rules, each a pair of expression and message."""
    return {"x-kubernetes-validations": [cel_rule(rule, message) for rule, message in rules]}


# A whole number of bytes needs no quotes, as in a pod.
MemoryQuantity = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(max_length=32, pattern=QUANTITY_PATTERN),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            "pattern": QUANTITY_PATTERN,
            **cel(("quantity(string(self)).isGreaterThan(quantity('0'))", "must be more than 0")),
        }
    ),
]
PRESERVE: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}


def quantity_bytes(quantity: str) -> int:
    """Return the bytes of a Kubernetes memory quantity such as 4Gi, 0.5G or 4e9, rounded up as
    there."""
    match = _QUANTITY.match(quantity) if re.match(QUANTITY_PATTERN, quantity) else None
    if match is None:
        raise ValueError(f"{quantity!r} is not a memory quantity; write it like 4Gi")
    number, unit = match.groups()
    whole, _, part = number.partition(".")
    exact = Fraction(f"{whole or 0}.{part or 0}") * _factor(unit)
    return min(_LARGEST, math.ceil(exact))


def _factor(unit: str | None) -> Fraction:
    if not unit:
        return Fraction(1)
    if unit.endswith("i"):
        return Fraction(1024) ** _POWERS["k" if unit == "Ki" else unit[0]]
    if unit[0] in "eE" and len(unit) > 1:
        return Fraction(10) ** int(unit[1:])
    return Fraction(1000) ** _POWERS[unit]


def memory_quantity(size_bytes: int) -> str:
    """Return the shortest exact quantity of a size, as a user would write it."""
    for power, unit in ((3, "Gi"), (2, "Mi"), (1, "Ki")):
        if size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{unit}"
    return str(size_bytes)
