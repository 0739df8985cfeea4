"""What the spec and status models share: a frozen base, CEL rules, and memory quantities.

The models are the source of the CRD (api/crd.py): field docstrings become descriptions, so they
are written for `kubectl explain`.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

QUANTITY_PATTERN = r"^[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
_QUANTITY_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


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


def cel_rule(rule: str, message: str) -> dict[str, Any]:
    """One x-kubernetes-validations entry; the message states the accepted range."""
    return {"rule": rule, "message": message}


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """json_schema_extra with CEL rules, each a pair of expression and message."""
    return {"x-kubernetes-validations": [cel_rule(rule, message) for rule, message in rules]}


PRESERVE: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}


def quantity_bytes(quantity: str) -> int:
    """Bytes of a Kubernetes memory quantity such as 4Gi or 1.5G."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?", quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is not a memory quantity; write it like 4Gi")
    number, unit = match.groups()
    return int(float(number) * _QUANTITY_UNITS[unit or ""])


def memory_quantity(size_bytes: int) -> str:
    """The shortest exact quantity of a size, as a user would write it."""
    for unit in ("Gi", "Mi", "Ki"):
        if size_bytes % _QUANTITY_UNITS[unit] == 0:
            return f"{size_bytes // _QUANTITY_UNITS[unit]}{unit}"
    return str(size_bytes)
