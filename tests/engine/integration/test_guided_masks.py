"""Masked and plain rows in one batch, eager and captured: without xgrammar, on whatever device.

float32 throughout, so that a difference is a fault and not rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

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
    """Allows the tokens whose id leaves the answer's length so far as remainder by five."""

    def __init__(self) -> None:
        self.length = 0

    def fill_next_token_bitmask(self, bitmask: NDArray[np.int32], index: int) -> bool:
        tokens = np.arange(bitmask.shape[1] * 32)
        bits = np.packbits(tokens % 5 == self.length % 5, bitorder="little")
        bitmask[index] = bits.view(np.int32)
        return True

    def accept_token(self, token_id: int) -> bool:
        fits = token_id % 5 == self.length % 5
        self.length += 1
        return fits

    def is_terminated(self) -> bool:
        return False


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), head_dim=64)


def answers(checkpoint: Path, *, guided: bool, **options: Any) -> list[list[int]]:
    """Of 17 prompts, drawn and greedy; every third is masked when `guided`."""
    driver = CoreDriver(str(checkpoint), **{**OPTIONS, **options})
    draw = np.random.default_rng(3)
    tokens: dict[int, list[int]] = {}
    for index, length in enumerate(draw.integers(1, 60, 17)):
        params = {"temperature": index % 2 * 0.8, "top_k": 30 if index % 4 == 3 else -1}
        sampling = SamplingParams(**params, seed=index, max_tokens=20, ignore_eos=True)
        number = driver.add(draw.integers(3, driver.vocab_size, size=length).tolist(), sampling)
        tokens[number] = []
        if guided and index % 3 == 0:
            params_of_rows = SamplingParams(structured_outputs=ASKED)
            driver.guided.rows.enter(number, EveryFifth(), params_of_rows)
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
