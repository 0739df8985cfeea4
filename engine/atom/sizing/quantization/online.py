"""Formats in which plain checkpoints are quantised as they are loaded, by `--quantization` and
`--online-quant-config`.

The second flag has upstream's form: a format for all matrices, others by glob patterns of module
names, and names of unquantised modules. Pure; the engine reads it from the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atom.sizing.errors import ModelFactsError
from atom.sizing.quantization.format import MXFP4_GROUP, SCALE_BYTES, Element, Quantization
from atom.sizing.quantization.scheme import FormatRule, NameMatch, QuantizationScheme

_FP8_BLOCKS = Quantization(
    method="online",
    element=Element.FP8,
    granularity="block",
    scale_bytes=SCALE_BYTES,
    block=(128, 128),
    input_bits=8,
)
_FP8_ROWS = replace(_FP8_BLOCKS, granularity="row", block=(0, 0))
_INT8_ROWS = replace(_FP8_ROWS, element=Element.INT8)
_MXFP4 = Quantization(
    method="online",
    element=Element.FP4,
    granularity="group",
    scale_bytes=1,
    group=MXFP4_GROUP,
)

# By the option's value; the longer names are upstream's.
ONLINE: dict[str, Quantization] = {"fp8": _FP8_BLOCKS, "int8": _INT8_ROWS, "mxfp4": _MXFP4}
ONLINE_NAMES: dict[str, Quantization] = {
    **ONLINE,
    "per_block_fp8": _FP8_BLOCKS,
    "per_block128_fp8": _FP8_BLOCKS,
    "ptpc_fp8": _FP8_ROWS,
}
_DEFAULT, _BY_LAYER, _EXCLUDED = "global_quant_config", "layer_quant_config", "exclude_layer"


def online_scheme(name: str) -> QuantizationScheme:
    """Return a scheme with all matrices in one format of `ONLINE`."""
    return QuantizationScheme(method="online", default=ONLINE[name])


def read_online_config(config: Mapping[str, object]) -> QuantizationScheme:
    """Read the scheme of `{"global_quant_config": "fp8", "layer_quant_config": {"*down_proj":
    "int8"}, "exclude_layer": ["*self_attn*"]}`, each key optional; raises ModelFactsError naming
    the key."""
    unknown = sorted(set(config).difference((_DEFAULT, _BY_LAYER, _EXCLUDED)))
    if unknown:
        raise _wrong(unknown[0], f"is not known; known: {_DEFAULT}, {_BY_LAYER}, {_EXCLUDED}")
    excluded = config.get(_EXCLUDED) or []
    names = [excluded] if isinstance(excluded, str) else excluded
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _wrong(_EXCLUDED, f"is {excluded!r}; give a list of module names")
    by_layer = config.get(_BY_LAYER) or {}
    if not isinstance(by_layer, Mapping):
        raise _wrong(_BY_LAYER, f"is {by_layer!r}; give an object of patterns and formats")
    rules = [FormatRule(tuple(names), None)] if names else []
    rules += [
        FormatRule((str(pattern),), _format(_BY_LAYER, name), NameMatch.GLOB)
        for pattern, name in by_layer.items()
    ]
    given = config.get(_DEFAULT)
    default = None if given is None else _format(_DEFAULT, given)
    scheme = QuantizationScheme(method="online", default=default, rules=tuple(rules))
    if not scheme.formats:
        raise _wrong(_DEFAULT, f"and {_BY_LAYER} are missing, so nothing would be quantised")
    return scheme


def _format(key: str, name: object) -> Quantization:
    found = ONLINE_NAMES.get(name) if isinstance(name, str) else None
    if found is None:
        raise _wrong(key, f"has the format {name!r}; known: {', '.join(ONLINE_NAMES)}")
    return found


def _wrong(key: str, problem: str) -> ModelFactsError:
    return ModelFactsError(f"online_quant_config: {key} {problem}", field=key)
