"""However steps are put together, each request's greedy tokens are transformers'.

Every combination of policy, chunk size, prefix cache, deferred output, memory that forces
preemption, and order of arrival: one loaded model, a scheduler of its own for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from atom.config import SchedulerConfig
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.step_pipeline import StepPipeline
from tests.support.engine_core.builders_engine import make_request
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.engine_core.scheduler_integrity import check_integrity
from tests.support.models.tiny_model import make_tiny_checkpoint

NEW_TOKENS = 10
MAX_MODEL_LEN = 96
BLOCK_SIZE = 16
AMPLE_BLOCKS, SCARCE_BLOCKS = 64, MAX_MODEL_LEN // BLOCK_SIZE + 2
# Tokens per step, and of one prompt per step: whole prompts, many prompts' chunks, one's pieces.
CHUNKS = {"whole": (512, 0), "budget": (24, 0), "threshold": (64, 7)}


def make_prompts(vocab_size: int) -> list[list[int]]:
    """Some begin alike for one block, some for four; one is a single token. Those that are about to
    need another block fill the scarce pool when they run together."""
    draw = np.random.default_rng(3)
    shared = draw.integers(3, vocab_size, size=64).tolist()
    lengths = ((0, 1), (16, 15), (16, 14), (16, 31), (64, 9), (64, 20))
    return [
        shared[:common] + draw.integers(3, vocab_size, size=own).tolist() for common, own in lengths
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[CoreDriver]:
    threads = torch.get_num_threads()
    driver = CoreDriver(
        str(checkpoint),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        num_kv_blocks=AMPLE_BLOCKS,
        block_size=BLOCK_SIZE,
    )
    torch.set_num_threads(1)  # the matrices are too small to be worth two
    yield driver
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def expected(checkpoint: Path, engine: CoreDriver) -> list[list[int]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    answers = []
    for prompt in make_prompts(engine.vocab_size):
        ids = torch.tensor([prompt])
        for _ in range(NEW_TOKENS):
            with torch.inference_mode():
                logits = model(ids).logits[0, -1]
            ids = torch.cat([ids, logits.argmax().view(1, 1)], dim=1)
        answers.append(ids[0, len(prompt) :].tolist())
    return answers


def generate(
    scheduler: Scheduler, engine: CoreDriver, depth: int, prompts: list[list[int]], order: list[int]
) -> list[list[int]]:
    pipeline = StepPipeline(scheduler, engine.executor, depth=depth)
    for number in order:
        scheduler.add(
            make_request(
                number, prompts[number], max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True
            )
        )
    tokens: list[list[int]] = [[] for _ in prompts]
    for step in itertools.count():
        assert step < 2000, "no progress"
        if not pipeline.has_work():
            return tokens
        result = pipeline.step(float(step))
        check_integrity(scheduler)
        if result is not None:
            for row, token in zip(result.request_ids, result.token_ids, strict=True):
                tokens[int(row)].append(int(token))
    raise AssertionError("unreachable")


@pytest.mark.pairs
@pytest.mark.parametrize("reverse", [False, True], ids=["in-order", "reversed"])
@pytest.mark.parametrize("scarce", [False, True], ids=["ample", "scarce"])
@pytest.mark.parametrize("depth", [0, 1], ids=["at-once", "deferred"])
@pytest.mark.parametrize("caching", [False, True], ids=["no-cache", "cache"])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("policy", ["mixed", "prefill_first"])
def test_greedy_tokens_equal_transformers(
    engine: CoreDriver, expected: list[list[int]], policy: str, chunk: str, caching: bool,
    depth: int, scarce: bool, reverse: bool,
) -> None:  # fmt: skip
    budget, threshold = CHUNKS[chunk]
    config = SchedulerConfig(
        policy=policy,
        max_num_seqs=8,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        max_step_seconds=0.0,
    )
    blocks = BlockManager(
        SCARCE_BLOCKS if scarce else AMPLE_BLOCKS, BLOCK_SIZE, enable_prefix_caching=caching
    )
    scheduler = Scheduler(config, blocks, max_model_len=MAX_MODEL_LEN, eos_token_ids=[])
    prompts = make_prompts(engine.vocab_size)
    order = list(range(len(prompts)))
    for _ in range(2):  # the second time with a warm cache, where there is one
        got = generate(scheduler, engine, depth, prompts, order[::-1] if reverse else order)
        assert got == expected
    stats = scheduler.stats()
    assert (stats.cached_tokens_total > 0) == caching
    assert (stats.preemptions_total > 0) == scarce
    assert blocks.pool.num_referenced == 0
