"""Which file processes the images of a checkpoint. Called by the server and by the encoders' tests.

A family is the `model_type` of a multimodal config.json; one without a row is served as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from atom.images.processing.gemma3 import gemma3_processor
from atom.images.processing.gemma4 import gemma4_processor
from atom.images.processing.kimi_k25 import kimi_processor
from atom.images.processing.llama4 import llama4_processor
from atom.images.processing.pixtral import pixtral_processor
from atom.images.processing.processor import ImageProcessor
from atom.images.processing.qwen_vl import qwen_vl_processor
from atom.images.processing.settings import Fields, ProcessorSettings, read_settings

_Builder = Callable[[ProcessorSettings, Fields], ImageProcessor]

_FAMILIES: Mapping[str, _Builder] = {
    "gemma3": gemma3_processor,
    "gemma4": lambda settings, config: gemma4_processor(settings),
    "kimi_k25": lambda settings, config: kimi_processor(settings),
    "llama4": lambda settings, config: llama4_processor(settings),
    "mistral3": pixtral_processor,
    **dict.fromkeys(
        ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
        lambda settings, config: qwen_vl_processor(settings),
    ),
}


def image_processor(folder: Path, config: Fields) -> ImageProcessor | None:
    """Return the processor of the checkpoint in `folder`; None for a family without one. config:
    its config.json. Raises `ModelError` for files that are damaged or contradict each other."""
    build = _FAMILIES.get(str(config.get("model_type")))
    return None if build is None else build(read_settings(folder, config), config)
