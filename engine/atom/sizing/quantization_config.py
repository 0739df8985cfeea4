"""quantization_config of a config.json → Quantization.

The formats are those of the checkpoints themselves: Hugging Face's fp8 (DeepSeek, Qwen3-FP8),
FBGEMM's, compressed-tensors, AutoAWQ, AutoGPTQ, AMD Quark, gpt-oss' MXFP4. A method, scheme or
type that is not known is a `ModelFactsError` that says which are.
"""

from __future__ import annotations

from dataclasses import replace

from atom.sizing.config_fields import Config, count, flag, mapping, positive, texts
from atom.sizing.errors import ModelFactsError
from atom.sizing.quantization import (
    GROUP_SCALE_BYTES,
    MXFP4_GROUP,
    SCALE_BYTES,
    Element,
    Granularity,
    Quantization,
)

_KNOWN = "fp8, fbgemm_fp8, compressed-tensors, awq, gptq, quark, mxfp4"
_PACKED = "pack-quantized"
_COMPRESSED_FORMATS = (None, "float-quantized", "int-quantized", "naive-quantized", _PACKED)


def read_quantization(config: Config) -> Quantization | None:
    """Of a whole config.json, None without one; raises ModelFactsError for an unknown format."""
    section = mapping(config, "quantization_config")
    if not section:
        return None
    method = str(section.get("quant_method"))
    reader = {
        "fp8": _fp8,
        "fbgemm_fp8": _fbgemm,
        "compressed-tensors": _compressed_tensors,
        "awq": _awq,
        "gptq": _gptq,
        "quark": _quark,
        "mxfp4": _mxfp4,
    }.get(method)
    if reader is None:
        raise _unknown(f"quant_method {method!r}")
    return reader(section)


def _fp8(section: Config) -> Quantization:
    excluded = (*texts(section, "modules_to_not_convert"), *texts(section, "ignored_layers"))
    block = section.get("weight_block_size")
    if block is None:
        return _eight_bits("fp8", Element.FP8, "tensor", excluded)
    return replace(_eight_bits("fp8", Element.FP8, "block", excluded), block=_block(block))


def _fbgemm(section: Config) -> Quantization:
    excluded = texts(section, "modules_to_not_convert")
    return _eight_bits("fbgemm_fp8", Element.FP8, "row", excluded)


def _compressed_tensors(section: Config) -> Quantization:
    groups = mapping(section, "config_groups")
    if len(groups) != 1:
        raise _unknown(f"{len(groups)} config_groups")
    layout = section.get("format")
    if layout not in _COMPRESSED_FORMATS:
        raise _unknown(f"format {layout!r}")
    group = mapping(groups, next(iter(groups)))
    if group.get("targets", ["Linear"]) != ["Linear"]:
        raise _unknown(f"targets {group['targets']!r}")
    if mapping(section, "sparsity_config").get("format", "dense") != "dense":
        raise _unknown("sparsity_config")
    return _compressed_group(mapping(group, "weights"), group, texts(section, "ignore"), layout)


def _compressed_group(
    weights: Config, group: Config, excluded: tuple[str, ...], layout: object
) -> Quantization:
    bits, kind = positive(weights, "num_bits"), weights.get("type")
    strategy = str(weights.get("strategy"))
    symmetric = flag(weights, "symmetric", default=True)
    if bits == 8 and strategy in ("tensor", "channel", "block") and layout != _PACKED and symmetric:
        granularity: Granularity = "row" if strategy == "channel" else "tensor"
        block = (0, 0)
        if strategy == "block":
            granularity, block = "block", _block(weights.get("block_structure"))
        element = Element.INT8 if kind == "int" else Element.FP8
        bits_of_inputs = 8 if group.get("input_activations") else 16
        plain = _eight_bits("compressed-tensors", element, granularity, excluded)
        return replace(plain, block=block, input_bits=bits_of_inputs)
    if bits == 4 and kind == "int" and strategy in ("group", "channel"):
        return Quantization(
            method="compressed-tensors",
            element=Element.INT4,
            granularity="group",
            scale_bytes=GROUP_SCALE_BYTES,
            group=positive(weights, "group_size") if strategy == "group" else 0,
            zero_point_bits=0 if symmetric else 4,
            ordered=weights.get("actorder") in (True, "group", "dynamic"),
            excluded=excluded,
        )
    scheme = "symmetric" if symmetric else "asymmetric"
    raise _unknown(f"{scheme} weights of {bits} bits, type {kind}, strategy {strategy}")


def _awq(section: Config) -> Quantization:
    version = str(section.get("version") or "gemm").lower()
    if version != "gemm":
        raise _unknown(f"awq of version {version!r}")
    return Quantization(
        method="awq",
        element=_int4(section),
        granularity="group",
        scale_bytes=GROUP_SCALE_BYTES,
        group=_group_size(section),
        zero_point_bits=4,
        excluded=texts(section, "modules_to_not_convert"),
    )


def _gptq(section: Config) -> Quantization:
    second = section.get("checkpoint_format") == "gptq_v2"
    return Quantization(
        method="gptq",
        element=_int4(section),
        granularity="group",
        scale_bytes=GROUP_SCALE_BYTES,
        group=_group_size(section),
        zero_point_bits=4,
        zero_offset=0 if second else 1,
        ordered=flag(section, "desc_act"),
        excluded=texts(section, "modules_to_not_convert"),
    )


def _quark(section: Config) -> Quantization:
    if mapping(section, "layer_quant_config") or mapping(section, "layer_type_quant_config"):
        raise _unknown("quark with formats by layer")
    scheme = mapping(section, "global_quant_config")
    weights, excluded = mapping(scheme, "weight"), texts(section, "exclude")
    dtype, shared = weights.get("dtype"), weights.get("qscheme")
    if dtype == "fp8_e4m3" and shared in ("per_tensor", "per_channel"):
        granularity: Granularity = "tensor" if shared == "per_tensor" else "row"
        bits_of_inputs = 8 if scheme.get("input_tensors") else 16
        plain = _eight_bits("quark", Element.FP8, granularity, excluded)
        return replace(plain, input_bits=bits_of_inputs)
    if dtype == "fp4" and shared == "per_group" and weights.get("group_size") == MXFP4_GROUP:
        inputs = mapping(scheme, "input_tensors")
        bits_of_inputs = 4 if inputs.get("dtype") == "fp4" else 16
        return replace(_microscaled("quark", excluded), input_bits=bits_of_inputs)
    raise _unknown(f"quark weights of dtype {dtype!r}, qscheme {shared!r}")


def _mxfp4(section: Config) -> Quantization:
    return _microscaled("mxfp4", texts(section, "modules_to_not_convert"))


def _microscaled(method: str, excluded: tuple[str, ...]) -> Quantization:
    return Quantization(
        method=method,
        element=Element.FP4,
        granularity="group",
        scale_bytes=1,  # e8m0
        group=MXFP4_GROUP,
        excluded=excluded,
    )


def _eight_bits(
    method: str,
    element: Element,
    granularity: Granularity,
    excluded: tuple[str, ...],
) -> Quantization:
    """Multiplied with inputs of eight bits, without blocks, until a caller says otherwise."""
    return Quantization(
        method=method,
        element=element,
        granularity=granularity,
        scale_bytes=SCALE_BYTES,
        input_bits=8,
        excluded=excluded,
    )


def _int4(section: Config) -> Element:
    bits = count(section, "bits")
    if bits != 4:
        raise _unknown(f"{section.get('quant_method')} with {bits} bits")
    return Element.INT4


def _group_size(section: Config) -> int:
    """-1 is one group over all inputs."""
    whole = section.get("group_size") == -1
    return 0 if whole else positive(section, "group_size", default=128)


def _block(value: object) -> tuple[int, int]:
    whole = isinstance(value, (list, tuple)) and all(isinstance(side, int) for side in value)
    if not isinstance(value, (list, tuple)) or not whole or len(value) != 2 or min(value) < 1:
        raise _unknown(f"blocks of {value!r}")
    return int(value[0]), int(value[1])


def _unknown(what: str) -> ModelFactsError:
    return ModelFactsError(
        f"config.json: quantization_config: {what} cannot be sized; known: {_KNOWN} with 4 or 8 "
        "bits; use another checkpoint of this model, or a plain one with --quantization",
        field="quantization_config",
    )
