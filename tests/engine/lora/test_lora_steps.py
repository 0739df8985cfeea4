"""Rows with adapters say what they say alone, whatever runs beside them and however steps are made:
chunks, preemption, slots that change hands, cached prefixes, drafts, masks, and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atom.model_engine.request import LoRARequest
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from atom.structured_outputs import StructuredOutputsParams
from tests.engine.lora.test_lora_parity import ADAPTERS, OPTIONS, lora_of, request_of
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroup

Asked = list[tuple[list[int], SamplingParams, LoRARequest | None]]


@dataclass(frozen=True)
class Served:
    """A checkpoint with adapters, seeded requests to them and none, and what each gets alone."""

    checkpoint: Path
    adapters: list[Path]
    asked: Asked
    alone: list[list[int]]

    def engine(self, *, room: dict[str, int] | None = None, **options: Any) -> CoreDriver:
        lora = lora_of(self.adapters, **(room or {}))
        return CoreDriver(str(self.checkpoint), lora=lora, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("lora")
    checkpoint = make_tiny_checkpoint(folder / "model")
    adapters = [
        make_adapter(folder / str(number), checkpoint, **asked)
        for number, asked in enumerate(ADAPTERS.values(), 1)
    ]
    engine = CoreDriver(str(checkpoint), lora=lora_of(adapters), **OPTIONS)
    asked = seeded(engine.vocab_size, count=24)
    alone = [engine.generate_each([each])[0] for each in asked]
    return Served(checkpoint, adapters, asked, alone)


def seeded(vocab_size: int, *, count: int) -> Asked:
    """Requests to every adapter and none in turn, half of them drawn; many begin alike."""
    draw = np.random.default_rng(3)
    shared = draw.integers(3, vocab_size, size=40).tolist()
    found: Asked = []
    for number in range(count):
        own = draw.integers(3, vocab_size, size=int(draw.integers(1, 60))).tolist()
        params = SamplingParams(
            temperature=0.7 if number % 2 else 0.0, seed=number, max_tokens=12, ignore_eos=True
        )
        found.append(((shared if number % 3 else []) + own, params, request_of(number % 4)))
    return found


WAYS: dict[str, dict[str, Any]] = {
    "in one batch": {},
    "one adapter on the device at a time": {"room": {"max_loras": 1}},
    "adapters that take turns": {"room": {"max_loras": 2}},
    "chunks of few tokens": {"max_num_batched_tokens": 16},
    "blocks for few rows, so that rows are preempted": {"num_kv_blocks": 18},
    "prompts before decodes": {"scheduling_policy": "prefill_first"},
    "no prefix cache": {"enable_prefix_caching": False},
    "the host a step behind": {"depth": 1},
    "drafts of the text": {
        "speculative": SpeculativeConfig(num_tokens=3, fewest_matched=1, adaptive=False),
    },
    "the reference's operations": {"backend": "torch_ref"},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_changes_no_token(served: Served, way: str) -> None:
    engine = served.engine(**WAYS[way])
    told = engine.generate_each(served.asked)
    differ = [number for number, tokens in enumerate(told) if tokens != served.alone[number]]
    assert differ == []
    if "preempted" in way:
        assert engine.scheduler.stats().preemptions_total > 0
    if way == "drafts of the text":
        assert engine.scheduler.stats().draft_tokens_total > 0


@pytest.mark.slow
def test_none_of_a_thousand_requests_differs_from_its_adapter_alone(served: Served) -> None:
    """Each adapter alone, one request at a time; then all of them together, short of everything."""
    engine = served.engine()
    asked = seeded(engine.vocab_size, count=1000)
    alone = [engine.generate_each([each])[0] for each in asked]
    few_slots = served.engine(room={"max_loras": 2}, max_num_batched_tokens=16)
    few_blocks = served.engine(num_kv_blocks=18)
    for scarce in (few_slots, few_blocks):
        told = scarce.generate_each(asked)
        assert [number for number, tokens in enumerate(told) if tokens != alone[number]] == []
    assert few_blocks.scheduler.stats().preemptions_total > 0


def test_a_prefix_is_cached_for_its_adapter_alone(served: Served) -> None:
    engine = served.engine()
    prompt = served.asked[1][0]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)

    def cached(number: int) -> int:
        before = engine.scheduler.stats().cached_tokens_total
        engine.generate_each([(prompt, params, request_of(number))])
        return engine.scheduler.stats().cached_tokens_total - before

    assert [cached(number) for number in (0, 1, 2)] == [0, 0, 0]
    assert all(cached(number) >= 32 for number in (0, 1, 2))


def test_guided_rows_have_adapters(served: Served) -> None:
    engine = served.engine()
    params = SamplingParams(
        temperature=0.0,
        max_tokens=8,
        structured_outputs=StructuredOutputsParams(regex="(ab|cd){3}"),
    )
    prompt = served.asked[1][0]
    asked = [(prompt, params, request_of(number)) for number in range(4)]
    try:
        together = engine.generate_each(asked)
        assert together == [engine.generate_each([each])[0] for each in asked]
    finally:
        engine.guided.close()
    assert len({tuple(tokens) for tokens in together}) > 1, "adapters choose among what is allowed"


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankGroup]:
    ranks = RankGroup(2)
    yield ranks
    ranks.close()


def test_ranks_that_share_a_model_share_its_adapters(served: Served, ranks: RankGroup) -> None:
    lora = lora_of(served.adapters, max_loras=2)
    engine = ranks.driver(str(served.checkpoint), lora=lora, **OPTIONS)
    assert engine.generate_each(served.asked) == served.alone
    engine.close()
