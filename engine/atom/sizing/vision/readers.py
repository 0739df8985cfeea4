"""Which architectures read images: the reader of each one's encoder. Pure.

An architecture without a row here is served as its text part alone. Called by ModelFacts."""

from __future__ import annotations

from collections.abc import Callable

from atom.sizing.config_fields import Config
from atom.sizing.vision.gemma3 import Gemma3VisionFacts, gemma3
from atom.sizing.vision.gemma4 import Gemma4VisionFacts, gemma4
from atom.sizing.vision.kimi_k25 import KimiVisionFacts, kimi_k25
from atom.sizing.vision.llama4 import Llama4VisionFacts, llama4
from atom.sizing.vision.pixtral import PixtralFacts, pixtral
from atom.sizing.vision.qwen3_vl import QwenVisionFacts, qwen3_5, qwen3_vl

VisionKind = (
    Gemma3VisionFacts
    | Gemma4VisionFacts
    | KimiVisionFacts
    | Llama4VisionFacts
    | PixtralFacts
    | QwenVisionFacts
)

_READERS: dict[str, Callable[[Config, Config], VisionKind]] = {
    "Gemma3ForConditionalGeneration": gemma3,
    "Gemma4ForConditionalGeneration": gemma4,
    "KimiK25ForConditionalGeneration": kimi_k25,
    "Llama4ForConditionalGeneration": llama4,
    "Mistral3ForConditionalGeneration": pixtral,
    "Qwen3VLForConditionalGeneration": qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": qwen3_vl,
    "Qwen3_5ForConditionalGeneration": qwen3_5,
    "Qwen3_5MoeForConditionalGeneration": qwen3_5,
}


def vision_facts(wrapper: str | None, config: Config, text: Config) -> VisionKind | None:
    """Return the encoder's facts; None for an architecture whose images are not read, and for a
    checkpoint without an encoder. config: the whole config.json; text: its decoder's part."""
    read = None if wrapper is None else _READERS.get(wrapper)
    if read is None or not config.get("vision_config"):
        return None
    return read(config, text)


def reads_images(wrapper: str) -> bool:
    """Return whether images of checkpoints of this architecture are read."""
    return wrapper in _READERS
