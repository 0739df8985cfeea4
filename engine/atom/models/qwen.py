"""Qwen2, Qwen2.5 (technical reports, 2024) and Qwen3's dense models (2025): the decoder with biases
on q, k and v, or with RMS norms on q and k; some layers may attend to a window. All of it is in the
facts."""

from __future__ import annotations

from atom.models.decoder.spec.decoder_spec import decoder_spec as spec

__all__ = ["spec"]
