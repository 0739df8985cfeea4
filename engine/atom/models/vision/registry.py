"""The encoder of each family, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from atom.models.vision.encoder import ImageEncoder, VisionSpec

_CLASSES = {"pixtral": "PixtralEncoder", "qwen3_vl": "QwenVisionEncoder"}


def build_encoder(spec: VisionSpec) -> ImageEncoder:
    """Build the encoder with empty parameters, on the current default device and dtype."""
    family = spec.facts.family
    module = import_module(f"atom.models.vision.{family}")
    return cast(ImageEncoder, getattr(module, _CLASSES[family])(spec))
