"""Read the section of NVIDIA's Model Optimizer: one algorithm, or MIXED_PRECISION by module.

The section is config.json's quantization_config, or `quantization` of hf_quant_config.json beside
an older config.json. Names of modules are wildcards. Formats and scales of a cache are not read:
the cache's elements are the engine's own choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from atom.sizing.config_fields import Config, mapping, positive, texts
from atom.sizing.quantization.format import Element, Quantization, Source
from atom.sizing.quantization.known_formats import converted, eight_bits, one_format, unknown
from atom.sizing.quantization.scheme import FormatRule, QuantizationScheme

METHOD = "modelopt"
_MIXED = "MIXED_PRECISION"
# Why a known algorithm is refused.
_REFUSED = {
    "NVFP4_AWQ": "inputs are to be multiplied with pre_quant_scale first",
    "W4A8_AWQ": "inputs are to be multiplied with pre_quant_scale first",
    "W4A8_NVFP4_FP8": "its tensors have no published description",
    "FP8_PB_WO": "its scales have four dimensions",
}


def read_modelopt(section: Config) -> QuantizationScheme:
    """Read the section; raises ModelFactsError for an unsupported algorithm."""
    section = mapping(section, "quantization") or section
    excluded = (*texts(section, "ignore"), *texts(section, "exclude_modules"))
    if _algorithm(section) == _MIXED:
        return _mixed(section, excluded)
    return one_format(_format(section, section), excluded)


def _mixed(section: Config, excluded: tuple[str, ...]) -> QuantizationScheme:
    """Read the algorithm of each listed module; all others are plain."""
    layers = mapping(section, "quantized_layers")
    if not layers:
        raise unknown(f"modelopt of quant_algo {_MIXED!r} without quantized_layers")
    named: dict[Quantization, list[str]] = {}
    for name in layers:
        named.setdefault(_format(mapping(layers, name), section), []).append(name)
    rules = [FormatRule(tuple(names), stored) for stored, names in named.items()]
    plain = [FormatRule(excluded, None)] if excluded else []
    return QuantizationScheme(method=METHOD, default=None, rules=(*plain, *rules))


def _format(section: Config, whole: Config) -> Quantization:
    """Return the format of an algorithm; whole: the section that may have the size of groups."""
    name = _algorithm(section)
    make = _FORMATS.get(name)
    if make is None:
        reason = f", since {_REFUSED[name]}," if name in _REFUSED else ""
        raise unknown(f"modelopt of quant_algo {section.get('quant_algo')!r}{reason}")
    stored = make()
    if stored.converted is not None:
        sized = section if section.get("group_size") else whole
        group = positive(sized, "group_size", default=stored.converted.group)
        if group != stored.converted.group:
            raise unknown(
                f"modelopt of quant_algo {name!r} in groups of {group} inputs (it has groups of "
                f"{stored.converted.group})"
            )
    return stored


def _algorithm(section: Config) -> str:
    return str(section.get("quant_algo") or "").upper()


def _fp8_tensor() -> Quantization:
    return eight_bits(METHOD, Element.FP8, "tensor")


_FORMATS: dict[str, Callable[[], Quantization]] = {
    "FP8": _fp8_tensor,
    "FP8_PER_CHANNEL_PER_TOKEN": lambda: replace(_fp8_tensor(), granularity="row"),
    "NVFP4": lambda: converted(METHOD, Source.NVFP4),
    "W4A16_NVFP4": lambda: converted(METHOD, Source.NVFP4),
    "MXFP8": lambda: converted(METHOD, Source.MXFP8),
}
