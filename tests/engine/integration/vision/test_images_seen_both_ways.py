"""Tokens of an image that see each other both ways are computed in one step, whatever divides
prompts: the tokens of transformers, and no chunk that ends among them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atom.config import EngineOptions, build_config
from atom.errors import RequestError
from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.request import Request
from atom.model_engine.request_image import RequestImage
from atom.model_engine.wire.request_bounds import RequestBounds
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.vision_checkpoints import (
    Picture,
    PicturePrompt,
    VisionModel,
    pictures_and_texts,
    text,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
RUN = 16  # tokens of a square


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return VisionModel(
        tmp_path_factory.mktemp("both ways"),
        "gemma3",
        whole={"mm_tokens_per_image": RUN},
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=40,
    )


def runs_of(prompt: PicturePrompt) -> list[tuple[int, int]]:
    """Return first and end of all runs, found token by token."""
    filled = np.zeros(len(prompt.token_ids) + 1, dtype=np.int8)
    for image in prompt.images:
        filled[image.offset : image.end] = image.is_image
    steps = np.diff(filled, prepend=0)
    return list(
        zip(np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True)
    )


class Watched(CoreDriver):
    """Fails for a chunk that ends within a run."""

    def __init__(self, model: VisionModel, prompts: list[PicturePrompt], **options: Any) -> None:
        given = {"max_num_seqs": 6, "block_size": 16, **options}
        super().__init__(str(model.folder), **given)
        self.runs = [runs_of(prompt) for prompt in prompts]
        submit = self.executor.submit

        def watched(batch: ScheduledBatch) -> int:
            rows = zip(batch.req_ids.tolist(), batch.context_lens.tolist(), strict=True)
            for number, end in rows:
                cut = [run for run in self.runs[number % len(prompts)] if run[0] < end < run[1]]
                assert not cut, f"a step of request {number} ends at {end}, within {cut}"
            return submit(batch)

        self.executor.submit = watched  # type: ignore[method-assign]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": RUN},
        {"max_num_batched_tokens": RUN + 5},
        {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 5},
        {"max_num_batched_tokens": 64, "scheduling_policy": "prefill_first"},
        {"max_num_batched_tokens": 48, "num_kv_blocks": 30, "max_model_len": 192},
        {"max_num_batched_tokens": 48, "block_size": 1},
        {"max_num_batched_tokens": 40, "backend": "torch_ref"},
        {"max_num_batched_tokens": 40, "depth": 1},
    ],
    ids=str,
)
def test_no_step_ends_within_an_image(model: VisionModel, options: dict[str, Any]) -> None:
    prompts = pictures_and_texts(model)
    engine = Watched(model, prompts, **options)
    expected = [model.greedy(prompt, 5) for prompt in prompts]
    asked = [prompt.asked(GREEDY) for prompt in prompts]
    assert engine.generate_each(asked) == expected
    assert engine.generate_each(asked) == expected  # from cached blocks, whose ends cut runs


def test_a_cached_prefix_may_end_within_an_image(model: VisionModel) -> None:
    """The rest of the image sees the cached keys of its begin, and they are right."""
    prompt = model.prompt(text(5, 1), Picture(1, 1, 1), text(9, 2))
    ((first, end),) = runs_of(prompt)
    engine = Watched(model, [prompt], max_num_batched_tokens=64)
    expected = [model.greedy(prompt, 5)]
    assert engine.generate_each([prompt.asked(GREEDY)]) == expected
    other = PicturePrompt([*prompt.token_ids[:end], *text(9, 3)], prompt.images)
    engine.runs = [runs_of(other)]
    pool = engine.scheduler.blocks
    assert first < end // 16 * 16 < end, "a block ends within the image"
    before = engine.scheduler.stats().cached_tokens_total
    assert engine.generate_each([other.asked(GREEDY)]) == [model.greedy(other, 5)]
    assert engine.scheduler.stats().cached_tokens_total - before == end // 16 * 16
    pool.pool.check_integrity()


def test_images_of_two_clients_do_not_wait_for_each_other(model: VisionModel) -> None:
    """Each client's share of a step is less than an image."""
    prompts = [model.prompt(text(3, at), Picture(1, 1, at), text(4, at)) for at in range(6)]
    engine = Watched(model, prompts, max_num_batched_tokens=RUN + 4)
    for at, prompt in enumerate(prompts):
        engine.pipeline.add(
            Request(
                *(at, prompt.token_ids, GREEDY, len(prompt.token_ids) + 5, time.monotonic()),
                client_id=f"client {at % 2}",
                images=[RequestImage.of(image) for image in prompt.images],
            )
        )
    found: dict[int, list[int]] = {at: [] for at in range(6)}
    for _ in range(400):
        if not engine.has_work():
            break
        result = engine.step()
        for number, run in () if result is None else result.runs():
            found[number] += run
    assert list(found.values()) == [model.greedy(prompt, 5) for prompt in prompts]


def test_an_image_beyond_a_step_is_refused_by_name(model: VisionModel) -> None:
    options = EngineOptions.of(
        model=str(model.folder), device="cpu", max_num_batched_tokens=RUN - 1, max_num_seqs=4
    )
    prompt = model.prompt(text(5, 1), Picture(1, 1), text(3, 2))
    asked = Request(
        *(1, prompt.token_ids, GREEDY, len(prompt.token_ids) + 5, 0.0),
        images=[RequestImage.of(image) for image in prompt.images],
    )
    config = build_config(options)
    with pytest.raises(RequestError, match="--max-num-batched-tokens") as error:
        RequestBounds(config.model).check(asked)
    assert error.value.param == "images"
    RequestBounds(replace(config.model, max_image_run=RUN)).check(asked)
