"""Llama 2 and 3 (Touvron et al. 2023; Llama 3 herd, 2024) and Seed-OSS (ByteDance Seed, 2025): the
plain decoder, in Seed-OSS with biases on q, k and v. All of it is in the facts."""

from __future__ import annotations

from atom.models.decoder.spec.decoder_spec import decoder_spec as spec

__all__ = ["spec"]
