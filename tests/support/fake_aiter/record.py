"""The record of AITER's signatures, by function and generation."""

from __future__ import annotations

import enum
import inspect
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

_FILE = Path(__file__).parent / "signatures.json"
_KINDS = {kind.name.lower().replace("_", "-"): kind for kind in inspect._ParameterKind}
_DTYPES = SimpleNamespace(
    bf16=torch.bfloat16,
    fp16=torch.float16,
    fp32=torch.float32,
    i8=torch.int8,
    i32=torch.int32,
    fp4x2=torch.float4_e2m1fn_x2,
)


@dataclass(frozen=True)
class Function:
    """One function of one generation; is_compiled: its arguments' types are checked by pybind or
    by torch's dispatcher."""

    name: str
    signature: inspect.Signature
    is_compiled: bool
    mutates: tuple[str, ...]


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_FILE.read_text())
    return data


def generations() -> tuple[str, ...]:
    return tuple(_data()["generations"])


@cache
def enums(generation: str) -> dict[str, type[enum.IntEnum]]:
    return {
        name: enum.IntEnum(name, values)  # type: ignore[misc]
        for name, values in _data()["enums"][generation].items()
    }


def functions(generation: str) -> dict[str, Function | None]:
    """By full name; None: this generation has none of that name."""
    return {name: _function(name, generation) for name in _data()["functions"]}


def _function(name: str, generation: str) -> Function | None:
    entry = _data()["functions"][name]
    listed = entry["signatures"][generation]
    if isinstance(listed, str):
        listed = entry["signatures"][listed.removeprefix("=")]
    if listed is None:
        return None
    kind = entry.get("kind_by_generation", {}).get(generation, entry["kind"])
    signature = inspect.Signature(
        [
            inspect.Parameter(
                parameter["name"],
                _KINDS[parameter.get("kind", "positional-or-keyword")],
                default=_default(parameter, generation),
                annotation=parameter.get("annotation", inspect.Parameter.empty),
            )
            for parameter in listed
        ]
    )
    compiled = kind == "compiled" or bool(entry.get("torch_op"))
    return Function(name, signature, compiled, tuple(entry.get("mutates", ())))


def _default(parameter: dict[str, Any], generation: str) -> Any:
    if "default" not in parameter:
        return inspect.Parameter.empty
    known = {
        **enums(generation),
        "dtypes": _DTYPES,
        "torch": torch,
        "GateMode": SimpleNamespace(SEPARATED=SimpleNamespace(value="separated")),
    }
    return eval(parameter["default"], {"__builtins__": {}}, known)
