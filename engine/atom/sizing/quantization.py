"""How a checkpoint stores its matrices: bytes of one matrix, and which matrices it leaves alone.

Reads quantization_config of config.json; the formats are those of the checkpoints themselves
(DeepSeek's block fp8, compressed-tensors, AutoAWQ, AutoGPTQ, gpt-oss' MXFP4). What an engine makes
of them, and whether it can, is not known here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from atom.sizing.config_fields import Config, count, flag, mapping, positive, texts
from atom.sizing.errors import ModelFactsError

Granularity = Literal["tensor", "row", "block", "group"]

_FP8_SCALE_BYTES = 4  # float32
_GROUP_SCALE_BYTES = 2  # float16 or bfloat16
_MXFP4_GROUP = 32
_KNOWN = "fp8, compressed-tensors, awq, gptq, mxfp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """One format for all matrices that `excluded` does not name.

    `group` is the number of inputs that share a scale; `block` (outputs, inputs) likewise.
    `zero_point_bits`: of one group of one output, 0 where the format is symmetric.
    `order_bytes`: per input, where the inputs are stored in another order (GPTQ's g_idx).
    """

    method: str
    bits: int
    granularity: Granularity
    scale_bytes: int
    group: int = 0
    block: tuple[int, int] = (0, 0)
    zero_point_bits: int = 0
    order_bytes: int = 0
    excluded: tuple[str, ...] = ()

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of `rows` outputs and `columns` inputs, its scales included."""
        return _ceil(rows * columns * self.bits, 8) + self._scales_bytes(rows, columns)

    def _scales_bytes(self, rows: int, columns: int) -> int:
        if self.granularity == "tensor":
            return self.scale_bytes
        if self.granularity == "row":
            return rows * self.scale_bytes
        if self.granularity == "block":
            tall, wide = self.block
            return _ceil(rows, tall) * _ceil(columns, wide) * self.scale_bytes
        groups = rows * _ceil(columns, self.group or columns)
        zeros = _ceil(groups * self.zero_point_bits, 8)
        return groups * self.scale_bytes + zeros + columns * self.order_bytes

    @property
    def input_multiple(self) -> int:
        """What a rank's share of a matrix' inputs must be a multiple of, for whole scales."""
        if self.granularity == "block":
            return self.block[1]
        return max(1, self.group) if self.method != "mxfp4" else 1  # engines pad MXFP4

    @property
    def output_multiple(self) -> int:
        """The same for its outputs."""
        return self.block[0] if self.granularity == "block" else 1

    def leaves(self, module: str) -> bool:
        """Whether `module`, such as model.layers.3.mlp.down_proj, keeps the model's own type."""
        return any(_names(pattern, module) for pattern in self.excluded)


def read_quantization(config: Config) -> Quantization | None:
    """Of a whole config.json, None without one; raises ModelFactsError for an unknown format."""
    section = mapping(config, "quantization_config")
    if not section:
        return None
    method = str(section.get("quant_method"))
    reader = {
        "fp8": _fp8,
        "compressed-tensors": _compressed_tensors,
        "awq": _awq,
        "gptq": _gptq,
        "mxfp4": _mxfp4,
    }.get(method)
    if reader is None:
        raise _unknown(f"quant_method {method!r}")
    return reader(section)


def _fp8(section: Config) -> Quantization:
    excluded = texts(section, "modules_to_not_convert")
    block = section.get("weight_block_size")
    if block is None:
        return Quantization(
            method="fp8",
            bits=8,
            granularity="tensor",
            scale_bytes=_FP8_SCALE_BYTES,
            excluded=excluded,
        )
    return Quantization(
        method="fp8",
        bits=8,
        granularity="block",
        scale_bytes=_FP8_SCALE_BYTES,
        block=_block(block),
        excluded=excluded,
    )


def _compressed_tensors(section: Config) -> Quantization:
    groups = mapping(section, "config_groups")
    if len(groups) != 1:
        raise _unknown(f"{len(groups)} config_groups")
    weights = mapping(mapping(groups, next(iter(groups))), "weights")
    bits, kind = positive(weights, "num_bits"), weights.get("type")
    strategy = str(weights.get("strategy"))
    excluded = texts(section, "ignore")
    if bits == 8 and strategy in ("tensor", "channel", "block"):
        granularity: Granularity = "row" if strategy == "channel" else "tensor"
        block = (0, 0)
        if strategy == "block":
            granularity, block = "block", _block(weights.get("block_structure"))
        return Quantization(
            method="compressed-tensors",
            bits=8,
            granularity=granularity,
            scale_bytes=_FP8_SCALE_BYTES,
            block=block,
            excluded=excluded,
        )
    if bits == 4 and kind == "int" and strategy in ("group", "channel"):
        return Quantization(
            method="compressed-tensors",
            bits=4,
            granularity="group" if strategy == "group" else "row",
            scale_bytes=_GROUP_SCALE_BYTES,
            group=positive(weights, "group_size") if strategy == "group" else 0,
            zero_point_bits=0 if flag(weights, "symmetric", default=True) else 4,
            excluded=excluded,
        )
    raise _unknown(f"weights of {bits} bits, type {kind}, strategy {strategy}")


def _awq(section: Config) -> Quantization:
    return Quantization(
        method="awq",
        bits=_int4(section),
        granularity="group",
        scale_bytes=_GROUP_SCALE_BYTES,
        group=positive(section, "group_size", default=128),
        zero_point_bits=4,
        excluded=texts(section, "modules_to_not_convert"),
    )


def _gptq(section: Config) -> Quantization:
    whole = section.get("group_size") == -1  # one group over all inputs
    return Quantization(
        method="gptq",
        bits=_int4(section),
        granularity="group",
        scale_bytes=_GROUP_SCALE_BYTES,
        group=0 if whole else positive(section, "group_size", default=128),
        zero_point_bits=4,
        order_bytes=4,
        excluded=texts(section, "modules_to_not_convert"),
    )


def _mxfp4(section: Config) -> Quantization:
    return Quantization(
        method="mxfp4",
        bits=4,
        granularity="group",
        scale_bytes=1,  # e8m0
        group=_MXFP4_GROUP,
        excluded=texts(section, "modules_to_not_convert"),
    )


def _int4(section: Config) -> int:
    bits = count(section, "bits")
    if bits != 4:
        raise _unknown(f"{section.get('quant_method')} with {bits} bits")
    return bits


def _block(value: object) -> tuple[int, int]:
    whole = isinstance(value, (list, tuple)) and all(isinstance(side, int) for side in value)
    if not isinstance(value, (list, tuple)) or not whole or len(value) != 2 or min(value) < 1:
        raise _unknown(f"blocks of {value!r}")
    return int(value[0]), int(value[1])


def _unknown(what: str) -> ModelFactsError:
    return ModelFactsError(
        f"config.json: quantization_config: {what} cannot be sized; known: {_KNOWN} with 4 or 8 "
        "bits; use another checkpoint of this model",
        field="quantization_config",
    )


def _names(pattern: str, module: str) -> bool:
    """compressed-tensors' ignore lists hold names or re:…, others parts of names, * for any."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    part = re.escape(pattern).replace(r"\*", "[^.]*")
    return re.search(rf"(^|\.){part}(\.|$)", module) is not None


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
