"""Simulated images of prompts: encoded once, in the steps that the engine's scheduler chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.advisor.candidates import Candidate, candidates
from atom.advisor.engine_form import EngineForm
from atom.advisor.errors import AdviceError
from atom.advisor.extra_work import EncoderWork, extra_work
from atom.advisor.extras import Pictures
from atom.advisor.launches import Launches
from atom.advisor.load import DrawnLoad, RateLoad, parse_load
from atom.advisor.operations import Operation, model_work
from atom.advisor.question import Lost, ModelForm, Question, Variants
from atom.advisor.rates import ASSUMED, Tables
from atom.advisor.room import Division, plan_form
from atom.advisor.simulation import Fleet, _Simulation, simulate
from atom.advisor.slo import parse_slo
from atom.advisor.step_shape import StepShape
from atom.advisor.step_time import StepTimer
from atom.entrypoints.advise.variants import pictures_of
from atom.sizing import ModelFacts
from atom.sizing.cards import CARDS, Vendor
from benchmarks.workloads.shapes import SHAPES
from tests.support.random_search import examples

_TEXT = {**SHAPES["qwen3-8b"], "rope_scaling": {"mrope_section": [24, 20, 20]}}
READING = ModelFacts.from_hf_config(
    {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": {key: value for key, value in _TEXT.items() if key != "architectures"},
        "vision_config": {"out_hidden_size": 4096},
    }
)
FACTS = ModelFacts.from_hf_config(SHAPES["qwen3-8b"])
DEVICES = {f"needs {count} devices of at most 2" for count in (4, 8, 16, 32)}
TOO_MANY = "the images of a prompt have 3,600 tokens, and the prompt 900 with them"
CARD, TABLES = CARDS["H200"], Tables.packaged()


def form(pictures: Pictures | None, blocks: int = 900, depth: int = 1) -> EngineForm:
    planned = plan_form(Division(READING, CARD, 1), 16, 4096)
    limits = replace(planned.limits, max_model_len=4096, max_num_batched_tokens=1024)
    budget = replace(planned.budget, num_blocks=blocks)
    return replace(planned, limits=limits, budget=budget, depth=depth, pictures=pictures)


def load(tokens: int, count: int = 12, seed: int = 0, prefix: float = 0.0) -> DrawnLoad:
    asked = RateLoad(rate=20.0, input_tokens=tokens, output_tokens=10, prefix=prefix, prefixes=2)
    return DrawnLoad(asked, count, 20.0, seed)


@settings(max_examples=examples(6), deadline=None)
@given(
    pictures=st.builds(Pictures, st.integers(1, 3), st.integers(20, 700), st.integers(20, 700)),
    more=st.integers(2, 900),
    blocks=st.sampled_from((260, 900)),
    depth=st.sampled_from((0, 1)),
    prefix=st.sampled_from((0.0, 0.5)),
)
def test_each_image_is_encoded_before_its_prompts_first_token(
    pictures: Pictures, more: int, blocks: int, depth: int, prefix: float
) -> None:
    assert READING.vision is not None
    tokens = pictures.tokens(READING.vision, 4096)
    steps: list[StepShape] = []

    def seconds(shape: StepShape) -> float:
        steps.append(shape)
        return 0.004 + 0.01 * len(shape.grids)

    asked = load(tokens + more, prefix=prefix)
    simulation = _Simulation(Fleet(form(pictures, blocks, depth), seconds), asked)
    outcome = simulation.run(None)
    assert all(outcome.served)
    encoded = [grid for step in steps for grid in step.grids]
    assert len(encoded) == 12 * pictures.count
    assert set(encoded) == {pictures.grid(READING.vision, 4096)}
    assert all(step.has_images for step in steps if step.grids)
    (engine,) = simulation._engines
    assert engine.scheduler.blocks.pool.num_referenced == 0
    without = simulate(Fleet(form(None, blocks, depth), seconds), asked)
    first = sum(each.ttft for each in outcome.served if each)
    assert first > sum(each.ttft for each in without.served if each)


def test_an_encoder_reads_its_weights_once_a_step_and_multiplies_each_patch() -> None:
    assert READING.vision is not None
    work, grid = EncoderWork(READING.vision, 2), (1, 32, 48)
    one, two = (
        {each.operation: each for each in work.of_step(replace(StepShape.prompt(512), grids=grids))}
        for grids in ((grid,), (grid, grid))
    )
    matrices = one[Operation.MATRICES]
    assert matrices.moved_bytes == 2 * READING.vision.parameters
    assert matrices.moved_bytes == two[Operation.MATRICES].moved_bytes
    assert matrices.width == 32 * 48
    (_, products), (_, twice) = matrices.flops[0], two[Operation.MATRICES].flops[0]
    assert twice == pytest.approx(2 * products)
    # 27 layers of 15.2 million parameters, two operations each, on 1,536 patches.
    assert products == pytest.approx(2 * 27 * 15.2e6 * 1536, rel=0.15)
    assert not list(work.of_step(StepShape.prompt(512)))


def test_steps_with_images_are_launched_op_by_op_with_their_encoder() -> None:
    pictures = Pictures(1, 448, 448)
    launches = Launches.of(form(pictures), Vendor.NVIDIA, 1, ASSUMED.seconds)
    text = StepShape.prompt(128)
    beside = replace(text, has_images=True)
    encoding = replace(beside, grids=((1, 28, 28),))
    assert launches.of_step(text).beside == 0
    assert launches.of_step(beside).beside == pytest.approx(ASSUMED.seconds.launch * 36)
    assert launches.of_step(encoding).beside == pytest.approx(ASSUMED.seconds.launch * (36 + 27))
    assert launches.times(2.0).of_step(encoding).beside == pytest.approx(
        2 * launches.of_step(encoding).beside
    )


def test_a_step_takes_as_much_longer_as_its_encoder_works() -> None:
    division = Division(READING, CARD, 1)
    parts = READING, division.kv, division.sharding
    work, pictures = model_work(*parts), Pictures(1, 1024, 1024)
    extras = extra_work(*parts, (None, None, pictures))
    timer = StepTimer(work, CARD, TABLES.rates(CARD), extras=extras)
    step = StepShape.prompt(1100)
    more = timer.seconds(replace(step, grids=((1, 64, 64),))) - timer.seconds(step)
    # 4,096 patches: 3.4 TFLOP of matrices and 2 of attention.
    assert 0.005 < more < 0.02


def question(images: Pictures | None, facts: ModelFacts = READING, tokens: int = 900) -> Question:
    return Question(
        models=(ModelForm(label="m", source="hf://Org/M", facts=facts),),
        slo=parse_slo("ttft=9s@p90"),
        load=parse_load(f"rate=1/s,in={tokens},out=100"),
        cards=(CARD,),
        tables=TABLES,
        max_devices=2,
        prices={},
        variants=Variants(divides=True),
        pictures=images,
    )


def test_images_make_prompts_dearer_and_models_that_read_none_are_lost() -> None:
    found, plain = (
        {each.label: each for each in candidates(question(images)) if isinstance(each, Candidate)}
        for images in (Pictures(1, 640, 640), None)
    )
    for label, candidate in found.items():
        assert candidate.engine_rate < plain[label].engine_rate
        assert candidate.prompt_share > plain[label].prompt_share
        assert not candidate.divided
    for asked, reason in (
        (question(Pictures(1, 640, 640), FACTS), "it reads no images"),
        (question(Pictures(9, 640, 640)), TOO_MANY),
    ):
        lost = list(candidates(asked))
        assert all(isinstance(each, Lost) for each in lost)
        assert {reason} == {each.why for each in lost if isinstance(each, Lost)} - DEVICES


def test_the_flag_of_images_is_read_or_refused() -> None:
    assert pictures_of("2:1024x768") == Pictures(2, 1024, 768)
    assert pictures_of(None) is None
    for wrong in ("2", "2:1024", "x:1x1", "0:8x8", "2:0x8", "2:99999x8", "-1:8x8", ""):
        with pytest.raises(AdviceError, match="--images"):
            pictures_of(wrong)
