"""Whole engines take prompts with images: over the wire, over ranks, with adapters, asleep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.config import Config, EngineOptions, build_config
from atom.errors import RequestError
from atom.images.item import PlacedImage, image_item
from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.control import Sleep, WakeUp
from atom.model_engine.llm_engine import LLMEngine
from atom.model_engine.request import LoRARequest, Request
from atom.model_engine.request_image import RequestImage
from atom.model_engine.wire.request_bounds import RequestBounds
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.vision_checkpoints import (
    Picture,
    VisionModel,
    pictures_and_texts,
    text,
)
from tests.support.ranks.rank_group import RankGroup

KINDS = ("gemma3", "gemma4", "llama4", "mistral3", "qwen3-vl", "qwen3-vl-moe")
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
OPTIONS: dict[str, Any] = {
    "max_num_batched_tokens": 24, "max_num_seqs": 4, "block_size": 16, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return VisionModel(tmp_path_factory.mktemp("vision"), request.param)


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    ranks = RankGroup(2)
    yield ranks
    ranks.close()


@pytest.mark.sampled(2)
def test_an_engine_process_answers_prompts_with_images(model: VisionModel) -> None:
    prompts = pictures_and_texts(model)
    with LLMEngine(model=str(model.folder), **OPTIONS) as engine:
        found = engine.generate(
            [prompt.token_ids for prompt in prompts],
            GREEDY,
            use_tqdm=False,
            images=[prompt.images for prompt in prompts],
        )
        assert engine.stats is not None
        assert engine.stats.image_items_total == sum(len(prompt.images) for prompt in prompts)
    assert [each["token_ids"] for each in found] == [model.greedy(each, 6) for each in prompts]


@pytest.mark.sampled(2)
def test_ranks_that_share_a_model_say_what_one_rank_says(
    model: VisionModel, pair: RankGroup
) -> None:
    prompts = pictures_and_texts(model)
    engine = pair.driver(str(model.folder), **{**OPTIONS, "num_kv_blocks": 80})
    try:
        found = engine.generate_each([prompt.asked(GREEDY) for prompt in prompts])
    finally:
        pair.let_go()
    assert found == [model.greedy(prompt, 6) for prompt in prompts]


def test_a_configuration_survives_its_way_to_the_processes(model: VisionModel) -> None:
    config = build_config(EngineOptions.of(model=str(model.folder), **OPTIONS))
    assert config.model.facts.vision is not None
    assert Config.from_json(config.to_json()) == config


@pytest.mark.sampled(2)
def test_an_engine_that_slept_encodes_its_images_again(model: VisionModel) -> None:
    prompt = model.prompt(text(5, 1), Picture(3, 4, 1), text(13, 2))
    engine = CoreDriver(str(model.folder), **OPTIONS)
    expected = model.greedy(prompt, 6)
    assert engine.generate_each([prompt.asked(GREEDY)]) == [expected]
    engine.scheduler.blocks.reset_prefix_cache()
    assert engine.scheduler.images is not None
    engine.scheduler.images.forget_all()
    engine.executor.control(Sleep(2, False))
    engine.executor.control(WakeUp())
    assert engine.generate_each([prompt.asked(GREEDY)]) == [expected]
    assert engine.scheduler.stats().images_encoded_total == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["mistral3", "qwen3-vl"])
def test_adapters_compute_prompts_with_images(tmp_path: Path, kind: str) -> None:
    model = VisionModel(tmp_path / "model", kind)
    adapted = model.adapted(tmp_path / "adapter")
    lora = LoraConfig(
        modules=(
            LoraModule(
                name="own", path=str(tmp_path / "adapter"), folder=str(tmp_path / "adapter")
            ),
        )
    )
    engine = CoreDriver(str(model.folder), lora=lora, **OPTIONS)
    prompts = pictures_and_texts(model)
    own = LoRARequest("own", 1)
    found = engine.generate_each(
        [prompt.asked(GREEDY, own if at % 2 else None) for at, prompt in enumerate(prompts)]
    )
    assert found == [
        (adapted if at % 2 else model).greedy(prompt, 6) for at, prompt in enumerate(prompts)
    ]


@pytest.mark.sampled(3)
@pytest.mark.singles
@pytest.mark.parametrize(
    "options", [{"language_model_only": True}, {"max_images": 0}, {"reproducible": True}], ids=str
)
def test_a_text_only_service_has_no_encoder_and_refuses_images(
    model: VisionModel, options: dict[str, Any]
) -> None:
    config = build_config(EngineOptions.of(model=str(model.folder), **OPTIONS, **options))
    assert config.model.facts.vision is None
    if config.execution.reproducible and model.kind.startswith("gemma"):
        return  # whose activation no reproducible kernel computes on a CPU
    with LLMEngine(config=config) as engine:
        prompt = model.prompt(text(5, 1), Picture(2, 2), text(3, 2))
        with pytest.raises(RequestError, match="served as a model of text"):
            engine.generate([prompt.token_ids], GREEDY, images=[prompt.images], use_tqdm=False)


def wrong_images(model: VisionModel) -> Iterator[tuple[str, list[int], list[PlacedImage]]]:
    """Yield images that do not fit their prompt or the model."""
    prompt = model.prompt(text(5, 1), Picture(2, 3), text(3, 2))
    (image,), tokens = prompt.images, prompt.token_ids
    item, mask = image.item, image.is_image
    yield "at tokens", tokens, [PlacedImage(item, len(tokens) - 1, mask)]
    yield "in the place of another", tokens, [image, image]
    yield f"fills {item.tokens - 1} of", tokens, [PlacedImage(item, image.offset, mask[1:] & True)]
    square = image_item(item.pixels[..., :-1], item.grid, item.tokens)
    yield "pixels of the shape", tokens, [PlacedImage(square, image.offset, mask)]
    still = image_item(item.pixels, (2, *item.grid[1:]), item.tokens)
    yield "grid", tokens, [PlacedImage(still, image.offset, mask)]
    many = model.prompt(*[Picture(1, 2, seed) for seed in range(9)])
    yield "has 9 images", many.token_ids, list(many.images)


def test_images_that_do_not_fit_are_refused_by_name(model: VisionModel) -> None:
    driver = CoreDriver(str(model.folder), **OPTIONS)
    bounds = RequestBounds(driver.config.model)
    for words, tokens, images in wrong_images(model):
        packed = [RequestImage.of(image) for image in images]
        asked = Request(1, tokens, GREEDY, len(tokens) + 6, 0.0, images=packed)
        with pytest.raises(RequestError, match=words) as error:
            bounds.check(asked)
        assert error.value.param == "images"
