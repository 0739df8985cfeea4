"""Options of images in prompts, for models that read images."""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.options.flag_values import image_limit
from atom.sizing.options.option import CrdField, Flag, Range, option

MOST_IMAGES = 64
_MIB = 2**20
_USUAL_MEMORY_MIB, _LEAST_MEMORY_MIB = 4096, 32
_MEMORY_PART = 20  # server and engine take a twentieth of the host's memory each, at most


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

    image_memory_mib: int | None = option(
        None,
        "MiB of decoded images of open requests, in the server and again in the engine, shared by "
        "all HTTP processes; others wait until there is memory; default: a twentieth of the host's "
        f"memory, at most {_USUAL_MEMORY_MIB}",
        within=Range(_LEAST_MEMORY_MIB, 1 << 24),
        crd=CrdField(
            "engine.imageMemoryMib",
            "MiB of decoded images of open requests, in the server and again in the engine; others "
            "wait until there is memory. Both are part of a GPU pod's memory request. Default: "
            f"{_USUAL_MEMORY_MIB}, and if the pod has a limit of memory at most a twentieth of it.",
            most=1 << 20,
        ),
    )

    def memory_bytes(self, host_bytes: int | None) -> int:
        """Return the bytes that the decoded images of open requests take, once in the server and
        once in the engine. host_bytes: of memory that their processes may use; None if it has no
        limit."""
        if self.image_memory_mib is not None:
            return self.image_memory_mib * _MIB
        usual = _USUAL_MEMORY_MIB * _MIB
        if host_bytes is None:
            return usual
        return min(usual, max(_LEAST_MEMORY_MIB * _MIB, host_bytes // _MEMORY_PART))

    @property
    def reads_images(self) -> bool:
        """Return whether the image encoder is loaded, if the model has one."""
        return self.max_images > 0 and not self.language_model_only
