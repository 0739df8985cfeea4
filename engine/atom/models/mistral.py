"""Mistral 7B and its successors (Jiang et al. 2023): the decoder, whose layers may all attend to a
window. All of it is in the facts."""

from __future__ import annotations

from atom.models.decoder.spec.decoder_spec import decoder_spec as spec

__all__ = ["spec"]
