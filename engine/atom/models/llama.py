"""Llama 2 and 3 (Touvron et al. 2023; Llama 3 herd, 2024): the plain decoder."""

from __future__ import annotations

from atom.models.spec import decoder_spec as spec

__all__ = ["spec"]
