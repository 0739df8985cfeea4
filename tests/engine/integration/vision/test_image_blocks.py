"""Blocks of prompts with images: shared by equal pictures alone, and each picture encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from atom.images.item import PlacedImage, image_item
from atom.model_engine.blocks.block_log import BlockLog, Stored
from atom.model_engine.kv_events.events import EventMaker
from atom.model_engine.schedule.images.image_steps import BAD_IMAGE
from atom.model_engine.schedule.step_result import StepResult
from atom.models.vision.encoder import ImageEncoder
from atom.sampling_params import SamplingParams
from atom.sizing.mask_rule import CAUSAL
from atom.sizing.vision.facts import Grid
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.vision_checkpoints import (
    IMAGE_TOKEN,
    Picture,
    PicturePrompt,
    VisionModel,
    text,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
SIZE = 16
# One group of layers, whose blocks follow one another.
ALIKE: dict[str, dict[str, Any]] = {
    "gemma3": {"layer_types": ["full_attention"] * 3},
    "llama4": {"no_rope_layers": [0] * 4},
}


@pytest.fixture(scope="module", params=["gemma3", "llama4", "mistral3", "qwen3-vl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    alike = ALIKE.get(request.param, {})
    return VisionModel(tmp_path_factory.mktemp("vision"), request.param, **alike)


def driver(model: VisionModel, **options: Any) -> CoreDriver:
    given = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "block_size": SIZE, **options}
    return CoreDriver(str(model.folder), **given)


def cached_tokens(engine: CoreDriver, prompt: PicturePrompt) -> int:
    before = engine.scheduler.stats().cached_tokens_total
    engine.generate_each([prompt.asked(GREEDY)])
    return engine.scheduler.stats().cached_tokens_total - before


def with_another_pixel(prompt: PicturePrompt, index: int) -> PicturePrompt:
    """Change one number of one pixel of the prompt's image `index`."""
    images = list(prompt.images)
    item = images[index].item
    pixels = item.pixels.copy()
    pixels.flat[-1] += 1.0
    changed = image_item(pixels, item.grid, item.tokens)
    images[index] = PlacedImage(changed, images[index].offset, images[index].is_image)
    return PicturePrompt(prompt.token_ids, tuple(images))


def test_one_pixel_shares_nothing_from_its_image_on(model: VisionModel) -> None:
    first, second = Picture(3, 4, 1), Picture(4, 3, 2)
    prompt = model.prompt(text(37, 1), first, text(30, 2), second, text(30, 3))
    engine = driver(model)
    engine.generate_each([prompt.asked(GREEDY)])
    whole = (len(prompt.token_ids) - 1) // SIZE * SIZE
    assert cached_tokens(engine, prompt) == whole
    for index, image in enumerate(prompt.images):
        changed = with_another_pixel(prompt, index)
        assert cached_tokens(engine, changed) == image.offset // SIZE * SIZE
        assert engine.generate_each([changed.asked(GREEDY)]) == [model.greedy(changed, 4)]


def test_a_second_turn_with_the_same_image_encodes_nothing(model: VisionModel) -> None:
    prompt = model.prompt(text(5, 1), Picture(3, 4, 1), text(13, 2))
    engine = driver(model)
    (answer,) = engine.generate_each([prompt.asked(GREEDY)])
    longer = PicturePrompt([*prompt.token_ids, *answer, *text(9, 3)], prompt.images)
    encoded = engine.scheduler.stats().images_encoded_total
    assert encoded == 1
    assert engine.generate_each([longer.asked(GREEDY)]) == [model.greedy(longer, 4)]
    assert engine.scheduler.stats().images_encoded_total == encoded


def test_an_image_of_several_prompts_is_encoded_once(model: VisionModel) -> None:
    picture = Picture(3, 4, 1)
    prompts = [model.prompt(text(6, seed), picture, text(7, seed + 10)) for seed in range(4)]
    engine = driver(model)
    assert engine.generate_each([prompt.asked(GREEDY) for prompt in prompts]) == [
        model.greedy(prompt, 4) for prompt in prompts
    ]
    stats = engine.scheduler.stats()
    assert (stats.image_items_total, stats.images_encoded_total) == (4, 1)
    assert stats.image_hits_total == 3
    assert stats.encoder_seconds_total > 0.0


@pytest.mark.sampled(1)
def test_more_images_than_their_outputs_have_room_for_take_turns(model: VisionModel) -> None:
    """A context of 40 tokens keeps the outputs of eight such contexts."""
    engine = driver(model, max_model_len=40, max_num_batched_tokens=512, max_num_seqs=32)
    prompts = [model.prompt(text(2, seed), Picture(4, 4, seed), text(3, 1)) for seed in range(24)]
    assert engine.generate_each([prompt.asked(GREEDY) for prompt in prompts]) == [
        model.greedy(prompt, 4) for prompt in prompts
    ]


def test_events_have_the_tokens_of_blocks_and_the_images_in_them(model: VisionModel) -> None:
    prompt = model.prompt(text(21, 1), Picture(3, 4, 1), text(20, 2))
    engine = driver(model)
    log = BlockLog()
    engine.scheduler.blocks.tell(log)
    (answer,) = engine.generate_each([prompt.asked(GREEDY)])
    entries = log.take()
    assert all(isinstance(entry, Stored) for entry in entries)
    events = EventMaker(SIZE, [CAUSAL]).events(entries)
    tokens = [token for event in events for token in event.token_ids]
    keys = [key for event in events for key in event.extra_keys or [None] * len(event.block_hashes)]
    blocks = len(keys)
    assert tokens == [*prompt.token_ids, *answer][: blocks * SIZE]
    (image,) = prompt.images
    digest = image.item.digest.hex()
    expected: list[Any] = [None] * blocks
    for block in range(image.offset // SIZE, min(-(-image.end // SIZE), blocks)):
        expected[block] = [(digest, image.offset - block * SIZE)]
    assert keys == expected


def test_an_output_that_is_no_number_ends_its_requests_alone(
    model: VisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Picture(3, 4, 1)
    prompts = [
        model.prompt(text(6, 1), bad, text(7, 2)),
        model.prompt(text(6, 3), Picture(2, 2, 2), text(7, 4)),
        model.prompt(text(9, 5), bad, text(3, 6)),
        model.prompt(text(9, 7)),
    ]
    pixels = prompts[0].images[0].item.pixels
    engine = driver(model)
    encoder = engine.executor.runner.steps.model.vision
    assert isinstance(encoder, ImageEncoder)
    encode = type(encoder).encode

    def broken(self: Any, given: Sequence[torch.Tensor], grids: Sequence[Grid]) -> torch.Tensor:
        found, end = encode(self, given, grids), 0
        for each, grid in zip(given, grids, strict=True):
            end += self.facts.image_tokens(grid)
            if each.shape == pixels.shape and np.array_equal(each.numpy(), pixels):
                found[end - 1, 0] = torch.nan
        return found

    monkeypatch.setattr(type(encoder), "encode", broken)
    numbers = [engine.add(*prompt.asked(GREEDY)) for prompt in prompts]
    tokens: dict[int, list[int]] = {number: [] for number in numbers}
    ends: dict[int, str] = {}
    while engine.has_work():
        result: StepResult | None = engine.step()
        if result is None:
            continue
        for number, run in result.runs():
            tokens[number] += run
        ends |= {row.request_id: row.detail for row in result.finished}
    assert [ends[number] == BAD_IMAGE for number in numbers] == [True, False, True, False]
    for index in (1, 3):
        assert tokens[numbers[index]] == model.greedy(prompts[index], 4)
    stats = engine.scheduler.stats()
    assert stats.image_failures_total >= 1
    assert stats.kv_blocks_used == 0
    engine.scheduler.blocks.pool.check_integrity()
    monkeypatch.undo()
    assert engine.generate_each([prompts[0].asked(GREEDY)]) == [model.greedy(prompts[0], 4)]


def test_image_tokens_of_a_text_alone_are_words(model: VisionModel) -> None:
    """Ids that stand for images have no image: they are embedded as any others."""
    engine = driver(model)
    tokens = [*text(5, 1), IMAGE_TOKEN, *text(5, 2)]
    (found,) = engine.generate_each([(tokens, GREEDY)])
    assert len(found) == 4
