"""Prompts for adapters, computed by one engine and answered by another that has the same adapters
under other numbers: the tokens are those of one engine, and no page is of another adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom.model_engine.request import LoRARequest
from atom.model_engine.transfer_legs import TransferResult
from atom.sampling_params import SamplingParams
from tests.engine.lora.test_lora_parity import lora_of
from tests.support.engine_core.transfer_pair import TransferPair
from tests.support.models.lora_adapter import make_adapter
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

_whole = pytest.mark.whole
_GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
_SEEDED = SamplingParams(max_tokens=8, temperature=1.0, seed=3)
_PROMPT = list(range(10, 95))


class Adapted:
    """A pair whose engines have the adapters 0 and 1, in the other order. The producer alone has
    the adapter 2, where the consumer has files of its own."""

    def __init__(self, architecture: Architecture, folder: Path, **options: Any) -> None:
        model = make_tiny_checkpoint(folder / "model", architecture)
        made = [make_adapter(folder / f"adapter-{seed}", model, seed=seed) for seed in range(4)]
        self.pair = TransferPair(
            model,
            lora=lora_of([made[0], made[1], made[2]]),
            apart={"lora": lora_of([made[1], made[0], made[3]])},
            **options,
        )

    def producers(self, adapter: int) -> LoRARequest:
        return LoRARequest(f"adapter-{adapter + 1}", adapter + 1)

    def consumers(self, adapter: int) -> LoRARequest:
        number = (2, 1, 3)[adapter]
        return LoRARequest(f"adapter-{number}", number)

    def alone(self, prompt: list[int], params: SamplingParams, adapter: int) -> list[int]:
        """The tokens of the consumer, which has nothing of the prompt cached."""
        lora = self.consumers(adapter)
        request = self.pair.begin_decode(prompt, params, None, lora=lora, cache_salt="whole")
        return self.pair.finish(request).tokens


@pytest.mark.parametrize(
    "architecture",
    ["qwen3", *(pytest.param(name, marks=_whole) for name in ("gemma3", "qwen3_next", "qwen3_5"))],
)
def test_tokens_are_those_of_one_engine(architecture: Architecture, tmp_path: Path) -> None:
    adapted = Adapted(architecture, tmp_path)
    pair = adapted.pair
    try:
        answers = set()
        for adapter, params in ((0, _GREEDY), (1, _GREEDY), (0, _SEEDED), (1, _SEEDED)):
            prompt = [5 + params.max_tokens + (params.seed or 0), *_PROMPT]
            expected = adapted.alone(prompt, params, adapter)
            note = pair.prefill(prompt, params, lora=adapted.producers(adapter))
            answer = pair.decode(prompt, params, note, lora=adapted.consumers(adapter))
            assert answer.tokens == expected
            assert answer.outcome is not None
            assert answer.outcome.result is TransferResult.TRANSFERRED, answer
            answers.add(tuple(expected))
        assert len(answers) == 4, "adapters change the answers"
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()


@pytest.mark.parametrize("adapter", [pytest.param(1, marks=_whole), 2])
def test_pages_of_other_files_are_not_read(adapter: int, tmp_path: Path) -> None:
    """Of another adapter, whose number or name is the same in both engines."""
    adapted = Adapted("qwen3", tmp_path)
    pair = adapted.pair
    mine = adapted.consumers(0 if adapter == 1 else 2)
    try:
        request = pair.begin_decode(_PROMPT, _GREEDY, None, lora=mine, cache_salt="whole")
        expected = pair.finish(request).tokens
        note = pair.prefill(_PROMPT, _GREEDY, lora=adapted.producers(adapter))
        answer = pair.decode(_PROMPT, _GREEDY, note, lora=mine)
        assert answer.tokens == expected
        assert answer.outcome is not None
        assert (answer.outcome.result, answer.outcome.reason) == (
            TransferResult.RECOMPUTED,
            "missing",
        )
        pair.turn_until(lambda: pair.held_blocks() == (0, 0), "both engines hold no block")
    finally:
        pair.close()
