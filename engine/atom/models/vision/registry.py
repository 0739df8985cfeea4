"""The encoder of each family, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from atom.model_ops.backends.interface import Ops
from atom.models.vision.encoder import ImageEncoder, VisionSpec

_CLASSES = {
    "gemma3": "Gemma3VisionEncoder",
    "gemma4": "Gemma4VisionEncoder",
    "kimi_k25": "KimiVisionEncoder",
    "llama4": "Llama4VisionEncoder",
    "pixtral": "PixtralEncoder",
    "qwen3_vl": "QwenVisionEncoder",
}


def build_encoder(spec: VisionSpec, ops: Ops) -> ImageEncoder:
    """Build the encoder with empty parameters, on the current default device and dtype. ops: of the
    decoder."""
    family = spec.facts.family
    module = import_module(f"atom.models.vision.{family}")
    return cast(ImageEncoder, getattr(module, _CLASSES[family])(spec, ops))
