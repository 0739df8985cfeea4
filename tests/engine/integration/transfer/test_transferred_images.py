"""Prompts with images computed by one engine and answered by another: for every family that reads
images, the tokens are those of one engine, and no image is encoded again whose pages came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atom.model_engine.request_image import RequestImage
from atom.model_engine.transfer_legs import TransferResult
from atom.sampling_params import SamplingParams
from tests.support.engine_core.frame_proxy import Action, Fault, FrameProxy
from tests.support.engine_core.transfer_pair import Answer, TransferPair
from tests.support.models.vision_checkpoints import (
    Picture,
    PicturePrompt,
    VisionModel,
    pictures_and_texts,
    text,
)
from tests.support.ranks.rank_group import RankGroups

_GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
_whole = pytest.mark.whole
# Both ways; three positions and deepstack; tiles; rows of patches; images among experts.
_KINDS = ["gemma3", "qwen3-vl"] + [
    pytest.param(kind, marks=_whole) for kind in ("gemma4", "llama4", "mistral3", "qwen3-vl-moe")
]
_LEGS = ((1, 2), (2, 1))


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> VisionModel:
    return VisionModel(tmp_path / "model", request.param)


def images_of(prompt: PicturePrompt) -> dict[str, Any]:
    return {"images": [RequestImage.of(image) for image in prompt.images]}


def divided(pair: TransferPair, prompt: PicturePrompt) -> Answer:
    fields = images_of(prompt)
    note = pair.prefill(prompt.token_ids, _GREEDY, **fields)
    return pair.decode(prompt.token_ids, _GREEDY, note, **fields)


def encoded(pair: TransferPair) -> int:
    """Images that the consumer has encoded."""
    return pair.consumer.core._scheduler.stats().images_encoded_total


@pytest.mark.parametrize("model", _KINDS, indirect=True)
def test_tokens_are_those_of_one_engine(model: VisionModel) -> None:
    pair = TransferPair(model.folder)
    try:
        moved = 0
        for prompt in pictures_and_texts(model):
            answer = divided(pair, prompt)
            assert answer.tokens == model.greedy(prompt, 6), prompt.token_ids
            if answer.outcome is not None:
                assert answer.outcome.result is not TransferResult.RECOMPUTED, answer.outcome
                moved += answer.outcome.tokens
        assert moved > 32
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()


@pytest.mark.parametrize("model", _KINDS[:1] + _KINDS[2:], indirect=True)
def test_an_image_whose_pages_came_is_not_encoded(model: VisionModel) -> None:
    """Another picture of the same size is another prompt, in spite of its equal tokens."""
    pair = TransferPair(model.folder)
    one, other = (model.prompt(text(20, 1), Picture(2, 3, n), text(24, 2)) for n in (1, 2))
    assert one.token_ids == other.token_ids
    try:
        for number, prompt in enumerate((one, other)):
            expected = model.greedy(prompt, 6)
            answer = divided(pair, prompt)
            assert answer.tokens == expected, number
            assert answer.outcome is not None
            assert answer.outcome.result is TransferResult.TRANSFERRED
            assert encoded(pair) == 0
        # The ticket of one picture has no pages for the other one.
        changed = replace(other, images=one.images)
        pair.consumer.core._scheduler.blocks.reset_prefix_cache()
        note = pair.prefill(other.token_ids, _GREEDY, **images_of(other))
        answer = pair.decode(changed.token_ids, _GREEDY, note, **images_of(changed))
        assert answer.tokens == model.greedy(one, 6)
        assert encoded(pair) == 1, "it is computed here, and so encoded here"
    finally:
        pair.close()


@pytest.mark.parametrize(
    "model",
    [_KINDS[1], pytest.param("gemma3", marks=_whole), *_KINDS[2:]],
    indirect=True,
)
@pytest.mark.parametrize("action", [Action.CUT, pytest.param(Action.GARBLE, marks=_whole)])
def test_a_lost_page_has_the_image_encoded_where_it_is_answered(
    model: VisionModel, action: Action
) -> None:
    pair = TransferPair(model.folder, transfer={"transports": ("tcp",)})
    prompt = model.prompt(text(30, 1), Picture(3, 4, 1), text(24, 2))
    try:
        expected = model.greedy(prompt, 6)
        for number in (0, 1):  # of the text before the image, and of the image
            pair.consumer.core._scheduler.blocks.reset_prefix_cache()
            pair.consumer.core._scheduler.images.forget_all()
            before = encoded(pair)
            note = pair.prefill(prompt.token_ids, _GREEDY, **images_of(prompt))
            with FrameProxy((note.host, note.port), Fault("page", action, number)) as proxy:
                pair.place = proxy.address
                answer = pair.decode(prompt.token_ids, _GREEDY, note, **images_of(prompt))
            assert answer.tokens == expected
            assert answer.outcome is not None
            assert answer.outcome.reason
            assert encoded(pair) == before + 1
    finally:
        pair.close()


@pytest.fixture(scope="module")
def group_of() -> Iterator[RankGroups]:
    groups = RankGroups()
    yield groups
    groups.close()


@_whole
@pytest.mark.parametrize("sizes", _LEGS, ids=str)
@pytest.mark.parametrize(
    "model", ["gemma3", "gemma4", "llama4", "mistral3", "qwen3-vl", "qwen3-vl-moe"], indirect=True
)
def test_other_numbers_of_ranks_say_the_same(
    model: VisionModel, sizes: tuple[int, int], group_of: RankGroups
) -> None:
    ranks = (group_of(sizes[0]), group_of(sizes[1]))
    pair = TransferPair(model.folder, ranks=ranks)
    try:
        for prompt in pictures_and_texts(model)[:4]:
            answer = divided(pair, prompt)
            assert answer.tokens == model.greedy(prompt, 6)
            assert answer.outcome is None or (
                answer.outcome.result is not TransferResult.RECOMPUTED
            ), answer.outcome
    finally:
        pair.close()
