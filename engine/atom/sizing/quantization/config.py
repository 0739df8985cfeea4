"""Convert the quantization_config of a config.json into a QuantizationScheme.

The formats are those of published checkpoints: Hugging Face's fp8 (DeepSeek, Qwen3-FP8), FBGEMM's,
compressed-tensors, AutoAWQ, AutoGPTQ and GPTQModel, AMD Quark, NVIDIA's Model Optimizer
(modelopt.py), gpt-oss' MXFP4, MiniMax-M3's MXFP8. Each has its own way to name modules that are
stored in another format. An unknown method, scheme or type is a `ModelFactsError` that lists the
known ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from atom.sizing.config_fields import Config, count, flag, mapping, positive, texts
from atom.sizing.quantization.format import (
    GROUP_SCALE_BYTES,
    MXFP4_GROUP,
    Element,
    Granularity,
    Quantization,
    Source,
)
from atom.sizing.quantization.known_formats import (
    converted,
    eight_bits,
    microscaled,
    one_format,
    unknown,
)
from atom.sizing.quantization.modelopt import METHOD as MODELOPT
from atom.sizing.quantization.modelopt import read_modelopt
from atom.sizing.quantization.scheme import FormatRule, NameMatch, QuantizationScheme

_PACKED, _MXFP4_PACKED = "pack-quantized", "mxfp4-pack-quantized"
_NVFP4_PACKED, _MXFP8 = "nvfp4-pack-quantized", "mxfp8-quantized"
_MXFP6_PACKED = "mxfp6-pack-quantized"
_CONVERTED: dict[object, Source] = {
    _NVFP4_PACKED: Source.NVFP4, _MXFP8: Source.MXFP8, _MXFP6_PACKED: Source.MXFP6,
}  # fmt: skip
_COMPRESSED_FORMATS = (
    None, "float-quantized", "int-quantized", "naive-quantized", _PACKED, _MXFP4_PACKED,
    *_CONVERTED,
)  # fmt: skip
# Not of a config.json: all modules that AWQ left plain, as the files hold them (checkpoint.py).
PLAIN_MODULES = "plain_modules_of_the_files"
_GPTQ_OVERRIDES = frozenset({"bits", "group_size", "desc_act", "sym"})


def read_quantization(config: Config) -> QuantizationScheme | None:
    """Read the quantisation of a whole config.json, None without one; raises ModelFactsError for an
    unknown format."""
    section = mapping(config, "quantization_config")
    if not section:
        return None
    method = str(section.get("quant_method"))
    if method.startswith(f"{MODELOPT}_"):  # modelopt_fp4, by the algorithm that it names again
        method = MODELOPT
    reader = {
        "fp8": _fp8,
        "fbgemm_fp8": _fbgemm,
        "compressed-tensors": _compressed_tensors,
        "awq": _awq,
        "gptq": _gptq,
        "quark": _quark,
        MODELOPT: read_modelopt,
        "mxfp4": _mxfp4,
        "mxfp8": _mxfp8,
    }.get(method)
    if reader is None:
        raise unknown(f"quant_method {method!r}")
    scheme = reader(section)
    if not scheme.formats:
        raise unknown(f"{method} without a format of weights")
    return scheme


def _fp8(section: Config) -> QuantizationScheme:
    excluded = (*texts(section, "modules_to_not_convert"), *texts(section, "ignored_layers"))
    form = section.get("fmt")
    if form not in (None, "e4m3", "float8_e4m3fn"):
        raise unknown(f"fp8 of fmt {form!r}")
    experts = section.get("expert_dtype")
    if experts not in (None, "fp8", "fp4"):
        raise unknown(f"fp8 with expert_dtype {experts!r}")
    rules = (FormatRule(("experts",), microscaled("fp8")),) if experts == "fp4" else ()
    block = section.get("weight_block_size")
    if block is None:
        return one_format(eight_bits("fp8", Element.FP8, "tensor"), excluded, rules=rules)
    stored = replace(eight_bits("fp8", Element.FP8, "block"), block=_block(block))
    return one_format(stored, excluded, rules=rules)


def _fbgemm(section: Config) -> QuantizationScheme:
    stored = eight_bits("fbgemm_fp8", Element.FP8, "row")
    return one_format(stored, texts(section, "modules_to_not_convert"))


def _compressed_tensors(section: Config) -> QuantizationScheme:
    """Read compressed-tensors' groups, which name modules, or Linear for all; a module's own group
    takes precedence."""
    groups = mapping(section, "config_groups")
    if not groups:
        raise unknown("compressed-tensors without config_groups")
    if mapping(section, "sparsity_config").get("format", "dense") != "dense":
        raise unknown("sparsity_config")
    if mapping(section, "transform_config"):
        raise unknown("transform_config, which turns the inputs of products,")
    named: list[FormatRule] = []
    default: Quantization | None = None
    for name in groups:
        group = mapping(groups, name)
        stored = _compressed_group(group, group.get("format") or section.get("format"))
        targets = texts(group, "targets") or ("Linear",)
        if "Linear" in targets:
            if default is not None and default != stored:
                raise unknown("two config_groups with targets ['Linear']")
            default = stored
        modules = tuple(target for target in targets if target != "Linear")
        if any(re.fullmatch(r"[A-Z]\w*", target) for target in modules):
            raise unknown(f"targets {list(targets)!r}")
        if modules:
            named.append(FormatRule(modules, stored))
    ignored = texts(section, "ignore")
    plain = (FormatRule(ignored, None),) if ignored else ()
    return QuantizationScheme(method="compressed-tensors", default=default, rules=(*plain, *named))


def _compressed_group(group: Config, layout: object) -> Quantization:
    weights = mapping(group, "weights")
    if layout not in _COMPRESSED_FORMATS:
        raise unknown(f"format {layout!r}")
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
        plain = eight_bits("compressed-tensors", element, granularity)
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
        )
    size = weights.get("group_size")
    if bits == 4 and layout == _MXFP4_PACKED and strategy == "group" and size == MXFP4_GROUP:
        bits_of_inputs = 4 if group.get("input_activations") else 16
        return replace(microscaled("compressed-tensors"), input_bits=bits_of_inputs)
    source = _CONVERTED.get(layout)
    if source is not None:
        return _converted(source, weights)
    scheme = "symmetric" if symmetric else "asymmetric"
    raise unknown(f"{scheme} weights of {bits} bits, type {kind}, strategy {strategy}")


def _converted(source: Source, weights: Config) -> Quantization:
    """Read a group of matrices that are converted as they are loaded."""
    whole = (source.bits, "float", source.group)
    found = tuple(weights.get(key) for key in ("num_bits", "type", "group_size"))
    strategy = weights.get("strategy")
    symmetric = flag(weights, "symmetric", default=True)
    if found == whole and strategy in ("tensor_group", "group") and symmetric:
        return converted("compressed-tensors", source)
    scheme, (bits, kind, size) = "symmetric" if symmetric else "asymmetric", found
    raise unknown(
        f"{scheme} {source} weights of {bits} bits, type {kind}, strategy {strategy}, "
        f"group_size {size} (it has {source.bits} bits and groups of {source.group})"
    )


def _awq(section: Config) -> QuantizationScheme:
    version = str(section.get("version") or "gemm").lower()
    if version != "gemm":
        raise unknown(f"awq of version {version!r}")
    stored = Quantization(
        method="awq",
        element=_int4(section),
        granularity="group",
        scale_bytes=GROUP_SCALE_BYTES,
        group=_group_size(section),
        zero_point_bits=4,
    )
    if PLAIN_MODULES in section:
        return one_format(stored, texts(section, PLAIN_MODULES))
    return one_format(stored, texts(section, "modules_to_not_convert"), NameMatch.SUBSTRING)


def _gptq(section: Config) -> QuantizationScheme:
    layout = section.get("checkpoint_format")
    if layout not in (None, "gptq", "gptq_v2"):
        raise unknown(f"gptq of checkpoint_format {layout!r}")
    if flag(section, "lm_head"):
        raise unknown("gptq with a quantised lm_head")
    stored = Quantization(
        method="gptq",
        element=_int4(section),
        granularity="group",
        scale_bytes=GROUP_SCALE_BYTES,
        group=_group_size(section),
        zero_point_bits=4,
        zero_offset=0 if layout == "gptq_v2" else 1,
        ordered=flag(section, "desc_act"),
    )
    rules = tuple(_gptq_rules(section, stored))
    scheme = one_format(stored, texts(section, "modules_to_not_convert"), rules=rules)
    chosen = _names(section, "modules_in_block_to_quantize")
    if not chosen:
        return scheme
    return replace(scheme, default=None, rules=(*scheme.rules, FormatRule(chosen, stored)))


def _gptq_rules(section: Config, stored: Quantization) -> Iterator[FormatRule]:
    """Yield the rules of GPTQModel's `dynamic`: "-:" precedes modules that are not quantised, "+:"
    or no prefix modules with another format; the first match applies."""
    dynamic = mapping(section, "dynamic")
    for name in dynamic:
        pattern = name.removeprefix("-:").removeprefix("+:")
        if name.startswith("-:"):
            yield FormatRule((pattern,), None, NameMatch.REGEX)
            continue
        own = mapping(dynamic, name)
        others = sorted(set(own).difference(_GPTQ_OVERRIDES))
        if others:
            raise unknown(f"gptq's dynamic {name!r} with {others[0]}")
        merged = {**section, **own}
        changed = replace(
            stored,
            element=_int4(merged),
            group=_group_size(merged),
            ordered=flag(merged, "desc_act"),
        )
        yield FormatRule((pattern,), changed, NameMatch.REGEX)


def _quark(section: Config) -> QuantizationScheme:
    """Read Quark's formats. Formats by layer are glob patterns of module names, as in AMD's
    *-FP8-KV checkpoints, which give keys and values the scales of a cache; formats by class of
    layer only repeat them."""
    default = _quark_format(mapping(section, "global_quant_config"))
    by_layer = mapping(section, "layer_quant_config")
    rules = tuple(
        FormatRule((name,), _quark_format(mapping(by_layer, name)), NameMatch.GLOB)
        for name in by_layer
    )
    by_class = mapping(section, "layer_type_quant_config")
    if any(_quark_format(mapping(by_class, name)) != default for name in by_class):
        raise unknown("quark with formats by layer_type_quant_config")
    excluded = texts(section, "exclude")
    plain = (FormatRule(excluded, None),) if excluded else ()
    return QuantizationScheme(method="quark", default=default, rules=(*plain, *rules))


def _quark_format(scheme: Config) -> Quantization | None:
    """Read one of Quark's layer configs; None if it stores weights unquantised."""
    weights = mapping(scheme, "weight")
    if not weights:
        return None
    dtype, shared = weights.get("dtype"), weights.get("qscheme")
    if dtype == "fp8_e4m3" and shared in ("per_tensor", "per_channel"):
        granularity: Granularity = "tensor" if shared == "per_tensor" else "row"
        bits_of_inputs = 8 if scheme.get("input_tensors") else 16
        return replace(eight_bits("quark", Element.FP8, granularity), input_bits=bits_of_inputs)
    if dtype == "fp4" and shared == "per_group" and weights.get("group_size") == MXFP4_GROUP:
        inputs = mapping(scheme, "input_tensors")
        bits_of_inputs = 4 if inputs.get("dtype") == "fp4" else 16
        return replace(microscaled("quark"), input_bits=bits_of_inputs)
    raise unknown(f"quark weights of dtype {dtype!r}, qscheme {shared!r}")


def _mxfp8(section: Config) -> QuantizationScheme:
    """Read MiniMax-M3's section: e4m3 in blocks of one output and 32 inputs."""
    block = section.get("weight_block_size")
    if block not in (None, [1, Source.MXFP8.group]):
        raise unknown(f"mxfp8 in blocks of {block!r} (it has blocks of [1, 32])")
    excluded = (*texts(section, "modules_to_not_convert"), *texts(section, "ignored_layers"))
    return one_format(converted("mxfp8", Source.MXFP8), excluded)


def _mxfp4(section: Config) -> QuantizationScheme:
    return one_format(microscaled("mxfp4"), texts(section, "modules_to_not_convert"))


def _names(section: Config, key: str) -> tuple[str, ...]:
    """Return the texts of a list, or of lists within it."""
    value = section.get(key) or []
    if not isinstance(value, (list, tuple)):
        return texts(section, key)
    flat = [name for each in value for name in (each if isinstance(each, list) else [each])]
    return texts({key: flat}, key)


def _int4(section: Config) -> Element:
    bits = count(section, "bits")
    if bits != 4:
        raise unknown(f"{section.get('quant_method')} with {bits} bits")
    return Element.INT4


def _group_size(section: Config) -> int:
    """Read the group size; -1 is one group over all inputs."""
    whole = section.get("group_size") == -1
    return 0 if whole else positive(section, "group_size", default=128)


def _block(value: object) -> tuple[int, int]:
    whole = isinstance(value, (list, tuple)) and all(isinstance(side, int) for side in value)
    if not isinstance(value, (list, tuple)) or not whole or len(value) != 2 or min(value) < 1:
        raise unknown(f"blocks of {value!r}")
    return int(value[0]), int(value[1])
