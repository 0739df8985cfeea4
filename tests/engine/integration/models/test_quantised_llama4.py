"""Quantised checkpoints of Llama 4, in every layout that is published, against transformers on what
their codes stand for: logits, tokens, ranks, and what is refused of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from atom.errors import ModelError
from atom.sampling_params import SamplingParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.greedy_oracle import GreedyAnswers
from tests.support.models.quantised_llama4 import LLAMA4_LAYOUTS, make_quantised_llama4
from tests.support.ranks.rank_group import RankGroup

NEW_TOKENS = 8
# Within a chunk of 20, about to need another block, over chunks of attention and of 48 tokens.
PROMPT_LENGTHS = (5, 15, 31, 46, 100)
OPTIONS = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "max_model_len": 256}


def prompts() -> list[list[int]]:
    draw = np.random.default_rng(7)
    return [draw.integers(3, 290, size=n).tolist() for n in PROMPT_LENGTHS]


class Answers:
    """transformers' greedy tokens of a plain checkpoint, and log-probabilities behind prompts."""

    def __init__(self, plain: Path) -> None:
        model = transformers.Llama4ForConditionalGeneration.from_pretrained(
            plain, dtype=torch.float32
        ).eval()
        self.tokens = GreedyAnswers(model, prompts(), NEW_TOKENS)
        self.logprobs: list[torch.Tensor] = []
        for prompt in prompts():
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
            self.logprobs.append(logits.log_softmax(-1))


@pytest.fixture(scope="module", params=LLAMA4_LAYOUTS, ids=str)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Answers]:
    folder = tmp_path_factory.mktemp(request.param)
    quantised, plain = make_quantised_llama4(folder, request.param)
    return str(quantised), Answers(plain)


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    ranks = RankGroup(2)
    yield ranks
    ranks.close()


@pytest.mark.sampled(4)
@pytest.mark.singles
@pytest.mark.parametrize("backend", ["auto", "torch_ref"])
def test_greedy_tokens_equal_transformers_with_chunks_and_a_cached_prefix(
    checkpoint: tuple[str, Answers], backend: str
) -> None:
    model, expected = checkpoint
    driver = CoreDriver(model, backend=backend, **OPTIONS)
    for _ in range(2):  # the second time with what is cached
        found = driver.generate(prompts(), max_tokens=NEW_TOKENS, ignore_eos=True)
        assert found == expected.tokens.answers(found)
    assert driver.scheduler.stats().cached_tokens_total > 0


@pytest.mark.rotated
def test_preempted_sequences_give_the_same_tokens(checkpoint: tuple[str, Answers]) -> None:
    model, expected = checkpoint
    driver = CoreDriver(
        model, num_kv_blocks=30, enable_prefix_caching=False, **{**OPTIONS, "max_model_len": 112}
    )
    found = driver.generate(prompts(), max_tokens=NEW_TOKENS, ignore_eos=True)
    assert found == expected.tokens.answers(found)
    assert driver.scheduler.stats().preemptions_total > 0


@pytest.mark.rotated
def test_logits_equal_transformers(checkpoint: tuple[str, Answers]) -> None:
    model, expected = checkpoint
    driver = CoreDriver(model, backend="torch_ref", **OPTIONS)
    asked = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=20)
    driver.generate_each([(prompt, asked) for prompt in prompts()])
    for (first, *_), wanted in zip(driver.logprobs, expected.logprobs, strict=True):
        ids, found = zip(*first.top_logprobs, strict=True)
        assert torch.tensor(found) == pytest.approx(wanted[list(ids)], abs=1e-4)
        assert list(ids) == wanted.topk(20).indices.tolist()


@pytest.mark.sampled(3)
@pytest.mark.singles
@pytest.mark.parametrize("whole_experts", [False, True], ids=["parts", "whole experts"])
def test_two_ranks_say_what_one_does(
    checkpoint: tuple[str, Answers], pair: RankGroup, whole_experts: bool
) -> None:
    model, expected = checkpoint
    together = pair.driver(model, enable_expert_parallel=whole_experts, **OPTIONS)
    found = together.generate(prompts(), max_tokens=NEW_TOKENS, ignore_eos=True)
    together.close()
    assert found == expected.tokens.answers(found)


SHARED = "language_model.model.layers.1.feed_forward."
ABSENT = "1 tensors of the model are in none of its files of weights"
FAULTS = {
    "a scale that is missing": ("fp8-dynamic", {"experts.2.up_proj.weight_scale": None}, ABSENT),
    "one matrix of an expert": ("w4a16", {"experts.1.down_proj.weight_packed": None}, ABSENT),
    "a stack beside modules": (
        "fp8-dynamic", {"experts.down_proj": torch.zeros(4, 128, 64)}, "experts.down_proj",
    ),
    "a stack without scales": ("fbgemm", {"experts.gate_up_proj_scale": None}, ABSENT),
    "a plain stack": ("fbgemm", {"experts.gate_up_proj": torch.zeros(4, 64, 256)}, "float8_e4m3fn"),
    "scales of inputs": (
        "fbgemm", {"experts.down_proj_scale": torch.ones(4, 1, 128)}, r"\[4, 64\]",
    ),
    "outputs first": (
        "fbgemm", {"experts.down_proj": torch.zeros(4, 64, 128).to(torch.float8_e4m3fn)},
        r"\[4, 128, 64\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_another_layout_than_the_methods_is_named(tmp_path: Path, fault: str) -> None:
    name, changes, said = FAULTS[fault]
    quantised, _ = make_quantised_llama4(tmp_path, name)
    file = quantised / "model.safetensors"
    tensors = load_file(file)
    for key, tensor in changes.items():
        tensors.pop(SHARED + key, None)
        if tensor is not None:
            tensors[SHARED + key] = tensor
    save_file(tensors, file)
    with pytest.raises(ModelError, match=said):
        CoreDriver(str(quantised), **OPTIONS)
