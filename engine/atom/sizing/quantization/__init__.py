"""Quantised matrices as sizes: their formats, and the readers of a checkpoint's or option's."""

from atom.sizing.quantization.format import (
    GROUP_SCALE_BYTES,
    INT4_WORD,
    MXFP4_GROUP,
    SCALE_BYTES,
    Element,
    Granularity,
    Quantization,
    Source,
)

__all__ = [
    "GROUP_SCALE_BYTES",
    "INT4_WORD",
    "MXFP4_GROUP",
    "SCALE_BYTES",
    "Element",
    "Granularity",
    "Quantization",
    "Source",
]
