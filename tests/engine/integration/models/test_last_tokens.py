"""Of a prompt's tokens the last layer goes on with those that are looked at, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from atom.utils.forward_context import get_forward_context
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint

PROMPTS = [[5, 9, 200, 31, 7] * 8, [11, 3] * 6, [17, 4, 90]]  # 40, 12 and 3 tokens


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), architecture="qwen3", head_dim=32)


def run(checkpoint: Path, **params: Any) -> tuple[list[list[int]], list[int], list[int]]:
    """Answers, and how many tokens the first and the last layer's MLP got in every step."""
    driver = CoreDriver(
        str(checkpoint), max_num_batched_tokens=32, max_num_seqs=4, num_kv_blocks=64
    )
    mlps = [module for module in modules(driver) if type(module).__name__ == "GatedLinear"]
    seen: dict[int, list[int]] = {}
    for index in (0, len(mlps) - 1):
        counts = seen[index] = []
        mlps[index].register_forward_hook(
            lambda module, args, out, counts=counts: counts.append(len(out))
        )
    answers = driver.generate(PROMPTS, max_tokens=3, ignore_eos=True, **params)
    return answers, seen[0], seen[len(mlps) - 1]


def modules(driver: CoreDriver) -> list[nn.Module]:
    return list(driver.executor.runner._model.modules())


def test_the_last_layer_computes_one_token_of_a_row_that_samples(checkpoint: Path) -> None:
    _, first, last = run(checkpoint)
    # The first prompt's 32 tokens end nothing; its other 8 and both shorter prompts do.
    assert first[:2] == [32, 23]
    assert last[:2] == [1, 3]
    assert first[2:] == last[2:], "decodes are looked at anyway"


def test_a_step_of_decodes_picks_none_out(checkpoint: Path) -> None:
    driver = CoreDriver(
        str(checkpoint), max_num_batched_tokens=64, max_num_seqs=4, num_kv_blocks=64
    )
    picked: list[bool] = []
    layer = next(module for module in modules(driver) if type(module).__name__ == "DecoderLayer")
    layer.register_forward_pre_hook(
        lambda *_: picked.append(get_forward_context().logits_indices is not None)
    )
    driver.generate(PROMPTS, max_tokens=3, ignore_eos=True)
    assert picked == [True, False, False]


def test_answers_are_those_of_all_tokens_computed(checkpoint: Path) -> None:
    """Log-probabilities of the prompts look at every token."""
    expected, first, last = run(checkpoint, prompt_logprobs=0)
    assert first == last
    assert run(checkpoint)[0] == expected
