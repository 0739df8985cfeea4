"""Requests with images that arrive, are preempted, are aborted and end in any order: the engine
holds the pixels of open requests, and of no others."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.scheduler_integrity import check_integrity
from tests.support.models.vision_checkpoints import Picture, PicturePrompt, VisionModel, text
from tests.support.random_search import examples

_ACTS = ("add", "step", "step", "step", "abort", "preempt")
_ROUNDS = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return VisionModel(tmp_path_factory.mktemp("vision"), "qwen3-vl")


@pytest.mark.parametrize("seed", range(examples(3)))
def test_pixels_leave_with_their_requests(model: VisionModel, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    options = {"max_num_batched_tokens": 24, "max_num_seqs": 3, "block_size": 16}
    engine = CoreDriver(str(model.folder), num_kv_blocks=8, max_model_len=96, **options)
    scheduler, seen = engine.scheduler, 0
    for _ in range(_ROUNDS):
        act = draw.choice(_ACTS)
        if act == "add":
            prompt = _prompt(draw, model)
            engine.add(*prompt.asked(SamplingParams(max_tokens=draw.randint(1, 12))))
        elif act == "step" and engine.has_work():
            engine.step()
        elif act == "abort" and scheduler.open_requests:
            engine.pipeline.abort([draw.choice(scheduler.open_requests)])
        elif act == "preempt":
            engine.pipeline.preempt_all()
        check_integrity(scheduler)
        seen = max(seen, scheduler.stats().image_bytes)
    while engine.has_work():
        engine.step()
        check_integrity(scheduler)
    assert seen > 0
    assert scheduler.stats().image_bytes == 0
    assert scheduler.stats().preemptions_total > 0


def _prompt(draw: random.Random, model: VisionModel) -> PicturePrompt:
    parts: list[Picture | list[int]] = [text(draw.randint(1, 20), draw.randrange(9))]
    for _ in range(draw.randint(0, 2)):
        parts.append(Picture(draw.randint(1, 3), draw.randint(1, 3), draw.randrange(4)))
        parts.append(text(draw.randint(1, 9), draw.randrange(9)))
    return model.prompt(*parts)
