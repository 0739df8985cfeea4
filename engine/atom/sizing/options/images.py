"""Options of images in prompts, for models that read images."""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.options.flag_values import image_limit
from atom.sizing.options.option import CrdField, Flag, Range, option

MOST_IMAGES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """Limit the images of prompts."""

    language_model_only: bool = option(
        False,
        "serve a multimodal model's text part alone: its image encoder is not loaded, and images "
        "are refused",
    )
    max_images: int = option(
        8,
        'most images of a prompt, as a number or as JSON, such as {"image": 8}; 0: as '
        "--language-model-only",
        flag=Flag(name="--limit-mm-per-prompt", metavar="N", read=image_limit),
        within=Range(0, MOST_IMAGES),
        crd=CrdField(
            "engine.maxImages",
            "Most images of a prompt, for models that read images; 0 serves the text part alone, "
            "without the memory of the image encoder. Default: {default}.",
        ),
    )

    @property
    def reads_images(self) -> bool:
        """Return whether the image encoder is loaded, if the model has one."""
        return self.max_images > 0 and not self.language_model_only
