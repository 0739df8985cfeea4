"""Tiny random checkpoints that read images, and what transformers computes of prompts with images.

The oracle gets the very pixels that the engine gets, so no image processing takes part.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atom.images.item import ImageItem, PlacedImage, image_item
from atom.model_engine.request import LoRARequest
from atom.sampling_params import SamplingParams
from tests.support.models.lora_adapter import adapt
from tests.support.models.multimodal_checkpoint import make_multimodal_checkpoint
from tests.support.models.seeing_families import (
    BREAK_TOKEN,
    END_TOKEN,
    FAMILIES,
    IMAGE_TOKEN,
    Picture,
)

__all__ = ["IMAGE_TOKEN", "Picture", "PicturePrompt", "VisionModel", "pictures_and_texts", "text"]

_TEXT_TOKENS = range(3, 256)


Part = Picture | Sequence[int]  # of a prompt: an image, or tokens


@dataclass(frozen=True, slots=True)
class PicturePrompt:
    """A prompt with its images, as the engine takes it."""

    token_ids: list[int]
    images: tuple[PlacedImage, ...]

    def asked(self, params: SamplingParams, lora: LoRARequest | None = None) -> tuple[Any, ...]:
        """Return the arguments of OfflineEngine.add."""
        return self.token_ids, params, lora, (), self.images


class VisionModel:
    """A checkpoint on disk and transformers' model of it. kind: of multimodal_checkpoint.KINDS;
    vision: changes of the encoder's config; whole: of config.json; changes: of the text part."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        *,
        vision: dict[str, Any] | None = None,
        whole: dict[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        family = FAMILIES[kind]
        self.kind, self.folder = kind, folder
        self.model = make_multimodal_checkpoint(
            *(folder, kind),
            vision={**family.encoder, **(vision or {})},
            whole={family.token_key: IMAGE_TOKEN, **(whole or {})},
            unlikely=(IMAGE_TOKEN,),
            **changes,
        )
        _name_image_tokens(folder / "tokenizer.json", family.texts)
        self.family = family(self.model.config)
        fields = self.family.processor()
        if fields is not None:
            (folder / "preprocessor_config.json").write_text(json.dumps(fields))

    def adapted(self, folder: Path) -> VisionModel:
        """Write an adapter of the decoder's matrices, and return the oracle with it."""
        decoder = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
        other = copy(self)
        other.model = adapt(deepcopy(self.model), folder, target_modules=decoder)
        return other

    def item(self, picture: Picture) -> ImageItem:
        """Draw the pixels of a picture, in the family's layout."""
        grid = self.family.grid(picture)
        draw = np.random.default_rng((picture.seed, *grid))
        pixels = draw.normal(size=self.family.shape(grid)).astype(np.float32)
        return image_item(pixels, grid, self.family.tokens(picture).count(IMAGE_TOKEN))

    def prompt(self, *parts: Part) -> PicturePrompt:
        """Join texts and images, each image in the tokens of its family."""
        token_ids: list[int] = []
        images = []
        for part in parts:
            if not isinstance(part, Picture):
                token_ids += part
                continue
            tokens = self.family.tokens(part)
            filled = np.flatnonzero(np.array(tokens) == IMAGE_TOKEN)
            span = np.zeros(filled[-1] + 1 - filled[0], dtype=np.bool_)
            span[filled - filled[0]] = True
            images.append(PlacedImage(self.item(part), len(token_ids) + int(filled[0]), span))
            token_ids += tokens
        return PicturePrompt(token_ids, tuple(images))

    def logits(self, prompt: PicturePrompt, more: Sequence[int] = ()) -> torch.Tensor:
        """Compute the logits [tokens, vocabulary] of a prompt and tokens after it."""
        ids = torch.tensor([[*prompt.token_ids, *more]])
        items = [image.item for image in prompt.images]
        inputs = self.family.inputs(ids, items) if items else {}
        with torch.inference_mode():
            return self.model(input_ids=ids, use_cache=False, **inputs).logits[0]

    def greedy(self, prompt: PicturePrompt, count: int) -> list[int]:
        """Draw the most likely tokens after a prompt."""
        drawn: list[int] = []
        for _ in range(count):
            drawn.append(int(self.logits(prompt, drawn)[-1].argmax()))
        return drawn


def _name_image_tokens(file: Path, texts: tuple[str, str, str]) -> None:
    """Give three tokens of the vocabulary the texts that stand for images in the family."""
    named = dict(zip((IMAGE_TOKEN, BREAK_TOKEN, END_TOKEN), texts, strict=True))
    tokenizer = json.loads(file.read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = named.get(token["id"], token["content"])
    file.write_text(json.dumps(tokenizer))


def text(length: int, seed: int) -> list[int]:
    """Draw tokens of a text."""
    draw = np.random.default_rng(seed)
    tokens: list[int] = draw.integers(_TEXT_TOKENS.start, _TEXT_TOKENS.stop, size=length).tolist()
    return tokens


def pictures_and_texts(model: VisionModel) -> list[PicturePrompt]:
    """Build prompts with none to four images: at the beginning, next to each other, at the end,
    the same one twice, and after a text that other prompts have too."""
    first, second = Picture(2, 3, 1), Picture(3, 1, 2)
    begin = text(20, 1)
    return [
        model.prompt(begin, first, text(9, 2), second, text(8, 3)),
        model.prompt(first, text(4, 4), Picture(1, 1, 6)),
        model.prompt(begin, first, text(9, 2), Picture(3, 1, 3), text(8, 3)),
        model.prompt(text(6, 5), Picture(1, 5, 4), first, Picture(4, 4, 5), first, text(1, 6)),
        model.prompt(begin, text(12, 7)),
        model.prompt(text(17, 8), Picture(1, 2, 7), text(3, 9)),
    ]
