"""Formats that several writers of checkpoints share, and the error for all others.

Called by the readers of quantization_config (config.py, modelopt.py).
"""

from __future__ import annotations

from atom.sizing.errors import ModelFactsError
from atom.sizing.quantization.format import (
    MXFP4_GROUP,
    SCALE_BYTES,
    Element,
    Granularity,
    Quantization,
    Source,
)
from atom.sizing.quantization.scheme import FormatRule, NameMatch, QuantizationScheme

_KNOWN = (
    "fp8, fbgemm_fp8, compressed-tensors, awq, gptq, quark, modelopt (FP8, NVFP4, MXFP8, "
    "MIXED_PRECISION of these), mxfp4, mxfp8"
)


def one_format(
    stored: Quantization,
    excluded: tuple[str, ...],
    match: NameMatch = NameMatch.PARTS,
    rules: tuple[FormatRule, ...] = (),
) -> QuantizationScheme:
    """Make a scheme with one format for every module that neither `excluded` nor `rules` name."""
    plain = (FormatRule(excluded, None, match),) if excluded else ()
    return QuantizationScheme(method=stored.method, default=stored, rules=(*plain, *rules))


def microscaled(method: str) -> Quantization:
    """Return MXFP4, whose inputs have 16 bits; callers may change that."""
    return Quantization(
        method=method,
        element=Element.FP4,
        granularity="group",
        scale_bytes=1,  # e8m0
        group=MXFP4_GROUP,
    )


def eight_bits(method: str, element: Element, granularity: Granularity) -> Quantization:
    """Return a format without blocks whose inputs have eight bits, too; callers may change both."""
    return Quantization(
        method=method,
        element=element,
        granularity=granularity,
        scale_bytes=SCALE_BYTES,
        input_bits=8,
    )


def converted(method: str, source: Source) -> Quantization:
    """Return the format to which matrices of a checkpoint in `source` are converted: fp8 with a
    scale per output, whatever the bits of the inputs that the checkpoint was made for."""
    return Quantization(
        method=method,
        element=Element.FP8,
        granularity="row",
        scale_bytes=SCALE_BYTES,
        input_bits=8,
        converted=source,
    )


def unknown(what: str) -> ModelFactsError:
    """Return the error for a format that cannot be sized."""
    return ModelFactsError(
        f"config.json: quantization_config: {what} cannot be sized; known: {_KNOWN} with 4 or 8 "
        "bits; use another checkpoint of this model, or a plain one with --quantization",
        field="quantization_config",
    )
