"""Seed-OSS (ByteDance Seed, 2025): Llama's decoder with biases on q, k and v. All of it is in the
facts."""

from __future__ import annotations

from atom.models.spec import decoder_spec as spec

__all__ = ["spec"]
