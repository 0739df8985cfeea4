"""Masked and plain rows in one batch, eager and captured: without xgrammar, on whatever device.

float32 throughout, so that a difference is a fault and not rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from atom.model_engine.structured_output.grammar import Grammar
from atom.model_engine.structured_output.guided_rows import GuidedRows
from atom.model_engine.structured_output.matcher_messages import MaskState
from atom.model_engine.structured_output.matcher_pool import MaskNews
from atom.sampling_params import SamplingParams
from atom.structured_outputs import StructuredOutputsParams
from tests.support.core_driver import CoreDriver
from tests.support.tiny_model import make_tiny_checkpoint

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
OPTIONS: dict[str, Any] = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 20,
    "dtype": "float32",
    "gpu_memory_utilization": 0.5,
    "num_kv_blocks": 256,
}
ASKED = StructuredOutputsParams(choice=["what a grammar would say"])


class EveryFifth:
    """Masks that allow the tokens whose id leaves the answer's length so far as remainder by five,
    made at once."""

    def __init__(self, vocab_size: int) -> None:
        self._tokens = np.arange(-(-vocab_size // 32) * 32)
        self._lengths: dict[int, int] = {}
        self._ready: list[MaskNews] = []

    def enter(self, request_id: int, grammar: Grammar) -> None:
        self._lengths[request_id] = 0
        self._ready.append(MaskNews(request_id, MaskState.READY))

    def accept(self, tokens: Iterable[tuple[int, int]]) -> None:
        for request_id, _ in tokens:
            self._lengths[request_id] += 1
            self._ready.append(MaskNews(request_id, MaskState.READY))

    def leave(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            del self._lengths[request_id]

    def mask(self, request_id: int) -> NDArray[np.int32]:
        allowed = self._tokens % 5 == self._lengths[request_id] % 5
        return np.packbits(allowed, bitorder="little").view(np.int32)

    def poll(self, timeout_seconds: float) -> list[MaskNews]:
        news, self._ready = self._ready, []
        return news


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), head_dim=64)


def answers(checkpoint: Path, *, guided: bool, **options: Any) -> list[list[int]]:
    """Of 17 prompts, drawn and greedy; every third is masked when `guided`."""
    driver = CoreDriver(str(checkpoint), **{**OPTIONS, **options})
    driver.guided.rows = GuidedRows(driver.vocab_size, [], EveryFifth(driver.vocab_size))
    draw = np.random.default_rng(3)
    tokens: dict[int, list[int]] = {}
    for index, length in enumerate(draw.integers(1, 60, 17)):
        params = {"temperature": index % 2 * 0.8, "top_k": 30 if index % 4 == 3 else -1}
        sampling = SamplingParams(**params, seed=index, max_tokens=20, ignore_eos=True)
        number = driver.add(draw.integers(3, driver.vocab_size, size=length).tolist(), sampling)
        tokens[number] = []
        if guided and index % 3 == 0:
            params_of_rows = SamplingParams(structured_outputs=ASKED)
            driver.guided.rows.enter(number, Grammar(""), params_of_rows)
    driver.guided.rows.news()  # all have their first mask
    while driver.has_work():
        result = driver.step()
        if result is not None:
            for number, token in zip(result.request_ids, result.token_ids, strict=True):
                tokens[int(number)].append(int(token))
            assert all(row.reason == "length" for row in result.finished)
    return list(tokens.values())


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"device": "cpu"}, id="cpu"),
        pytest.param({"device": "cpu", "depth": 1}, id="cpu, a step behind"),
        pytest.param({"device": "auto", "enforce_eager": True}, id="gpu, eager", marks=gpu),
        pytest.param({"device": "auto"}, id="gpu, graphs", marks=gpu),
        pytest.param({"device": "auto", "depth": 0}, id="gpu, graphs, at once", marks=gpu),
    ],
)
def test_masked_rows_keep_to_their_masks_and_the_others_never_notice(
    checkpoint: Path, options: dict[str, Any]
) -> None:
    plain = answers(checkpoint, guided=False, **options)
    mixed = answers(checkpoint, guided=True, **options)
    for index, (alone, beside) in enumerate(zip(plain, mixed, strict=True)):
        if index % 3:
            assert beside == alone
        else:
            assert [token % 5 for token in beside] == [at % 5 for at in range(20)]
    assert mixed == answers(checkpoint, guided=True, device="cpu", depth=0)
