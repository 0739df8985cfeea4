"""Warm-up: steps run at start, so that no step that serves a request is the first of its kind.

A kernel is compiled, and a library plans, when a call first needs it; while serving, that would
block every open request for up to a second. A step's kernels follow from its numbers of rows and
tokens and from its rows' sampling options, so steps of every kind are run once. They write to any
slot and cache block, and need no clean-up: a row that takes a slot or a block later writes it
first. ModelRunner calls this after the cache is allocated and graphs are captured; knows no
kernels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from atom.config import Config
from atom.model_engine.batch import NewRow, PromptScore, ScheduledBatch, TokenMask
from atom.model_engine.row_columns import EMPTY_ROW
from atom.model_engine.runner.cuda_graphs.graph_parts import bucket_sizes
from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.step_runner import StepRunner
from atom.model_engine.runner.step_variant import StepVariant
from atom.sampling_params import SamplingParams
from atom.utils.long_chunks import largest_chunk, planned_chunks
from atom.utils.row_groups import dense_lengths

# Up to this many tokens of a step its number may decide how it is computed; doubled from 1.
_FEW_TOKENS = 2048
# Rows whose logits are changed on their own: one, and more than any backend calls few.
_SHAPED_ROWS = (1, 64)
_CHUNK_TOKENS = 16

_LIMITS = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.01, logprobs=0)
_EVERYTHING = SamplingParams(
    temperature=0.6,
    top_p=0.95,
    min_tokens=8,
    max_tokens=16,
    stop_token_ids=(0,),
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={0: 1.0},
    bad_words_token_ids=((0,), (0, 0)),
    logprobs=1,
)


def warm_up(
    steps: StepRunner, config: Config, cache: CacheShape, progress: Callable[[float], None]
) -> None:
    """Run steps of every kind; progress is called with the share done."""
    batches = list(_batches(config, cache))
    for done, batch in enumerate(batches):
        progress(done / len(batches))
        steps.collect(steps.submit(batch))
    _sample_masked(steps, config, cache)
    _run_behind_unknown(steps, config, cache)


def run_largest_steps(
    steps: StepRunner,
    config: Config,
    cache: CacheShape,
    few_layers: Callable[[], AbstractContextManager[None]],
) -> None:
    """Encode the largest image, and run the largest possible steps: of prompts, and of rows that
    all sample. few_layers: a context in which one layer of each kind runs; a chunk's memory is
    freed after a layer."""
    if steps.images is not None:
        steps.images.encode_largest()
    tokens = config.scheduler.max_num_batched_tokens
    prompts, *chunks = largest_prompts(config, cache)
    steps.submit(prompts)
    with few_layers():
        for chunk in chunks:
            steps.collect(steps.submit(chunk))
    rows = min(tokens, config.scheduler.max_num_seqs)
    steps.submit(decode_batch([2] * rows, cache))
    longest = max(1, config.model.max_model_len - 1)
    ahead = min(config.scheduler.num_speculative_tokens, tokens // rows - 1, longest - 2)
    if ahead > 0:
        steps.collect(steps.submit(computing_ahead(decode_batch([2 + ahead] * rows, cache), ahead)))


def describe_start(config: Config) -> str:
    """Return the settings that decide which kernels a start needs, as text."""
    model, scheduler, parallel = config.model, config.scheduler, config.parallel
    values = (
        json.dumps(model.hf_config, sort_keys=True, default=str),
        model.dtype,
        model.max_model_len,
        model.facts.quantization,
        scheduler.max_num_seqs,
        scheduler.max_num_batched_tokens,
        config.cache.block_size,
        config.cache.kv_cache_dtype,
        parallel.tensor_parallel_size,
        parallel.expert_parallel,
        config.execution.backend,
        sorted(config.execution.op_backends.items()),
        config.execution.reproducible,
        config.execution.enforce_eager,
        None
        if config.lora is None
        else (config.lora.max_loras, config.lora.max_rank, config.lora.experts),
    )
    return repr(values)


def prompt_batch(
    counts: Sequence[int], cache: CacheShape, params: SamplingParams | None = None
) -> ScheduledBatch:
    """Build a step of prompts of `counts` tokens, in the first slots and all in the same blocks."""
    rows = [_row(slot, count, _tables(count, cache), params) for slot, count in enumerate(counts)]
    return _batch(rows, np.zeros(len(counts), np.int32), np.array(counts, np.int32), num_decodes=0)


def largest_prompts(config: Config, cache: CacheShape) -> Iterator[ScheduledBatch]:
    """Yield the steps of prompts that take the most memory: with the most tokens, and with as many
    in one chunk after a history."""
    most_tokens = config.scheduler.max_num_batched_tokens
    # The token that is drawn has its place, too.
    longest = max(1, config.model.max_model_len - 1)
    full, rest = divmod(most_tokens, longest)
    counts = [longest] * full + ([rest] if rest else [])
    yield prompt_batch(counts[: config.scheduler.max_num_seqs], cache)
    chunk = largest_chunk(most_tokens, longest)
    if chunk is not None:
        yield chunk_batch(*chunk, cache)


def chunk_batch(computed: int, count: int, cache: CacheShape) -> ScheduledBatch:
    """Build a step of one row that computes `count` tokens after `computed` ones."""
    tokens = computed + count
    row = _row(0, tokens, _tables(tokens, cache), None)
    counts = np.array([computed], np.int32), np.array([count], np.int32)
    return _batch([row], *counts, num_decodes=0)


def decode_batch(
    contexts: Sequence[int],
    cache: CacheShape,
    chunk: int = 0,
    params: SamplingParams | None = None,
    *,
    apart: bool = False,
) -> ScheduledBatch:
    """Build a step of decodes with `contexts` tokens each, and of a prompt of `chunk` tokens.
    apart: each in separate blocks, as far as there are enough."""
    counts = [*contexts, *([chunk] if chunk else [])]
    firsts = np.cumsum(contexts) // cache.block_size if apart else np.zeros(len(contexts), np.int64)
    rows = [
        _row(slot, 1, _tables(count, cache, int(first)), params)
        for slot, (count, first) in enumerate(zip(contexts, firsts, strict=True))
    ]
    if chunk:
        rows.append(_row(len(contexts), chunk, _tables(chunk, cache), None))
    scheduled = np.ones(len(counts), dtype=np.int32)
    scheduled[len(contexts) :] = chunk
    computed = np.array(counts, dtype=np.int32) - scheduled
    return _batch(rows, computed, scheduled, num_decodes=len(contexts))


def _batches(config: Config, cache: CacheShape) -> Iterator[ScheduledBatch]:
    scheduler = config.scheduler
    slots, longest = scheduler.max_num_seqs, config.model.max_model_len - 1
    most_tokens = scheduler.max_num_batched_tokens
    prompt = min(longest, most_tokens)
    few = [1 << power for power in range(_FEW_TOKENS.bit_length())]
    for tokens in [*few, *dense_lengths(prompt)]:
        if tokens <= prompt:
            yield prompt_batch([tokens], cache)
    for computed, count in planned_chunks(most_tokens, longest):
        yield chunk_batch(computed, count, cache)
    chunk = min(_CHUNK_TOKENS, prompt)
    for size in bucket_sizes(slots):
        rows = min(size, slots - 1, most_tokens - chunk)
        for context in (1, longest) if rows > 0 else ():
            # Rows of one length, and one that outlasts the others.
            yield decode_batch([context, *[1] * (rows - 1)], cache, chunk)
    yield from _sampled_batches(min(slots, most_tokens), cache)
    yield from _verify_batches(config, cache)
    scored = prompt_batch([min(4, prompt)], cache)
    if prompt > 1:
        yield replace(scored, prompt_scores=(PromptScore(0, 0, min(4, prompt) - 1),))
    for variant in StepVariant.served_by(config).narrower()[1:]:
        for tokens in [*few, prompt]:
            if tokens <= prompt:
                yield of_variant(prompt_batch([tokens], cache), variant)
        yield prompt_batch([1], cache)  # releases the rows' tables


def _sampled_batches(most_rows: int, cache: CacheShape) -> Iterator[ScheduledBatch]:
    for rows, params in zip(_SHAPED_ROWS, (_EVERYTHING, _LIMITS), strict=True):
        count = min(rows, most_rows)
        yield prompt_batch([1] * count, cache, params)
        yield decode_batch([2] * count, cache, params=params)
        yield prompt_batch([1] * count, cache)  # releases the parameters' tables


def computing_ahead(batch: ScheduledBatch, ahead: int, computed: int = 1) -> ScheduledBatch:
    """Return the batch with `ahead` extra tokens per decode, after `computed` ones, and its other
    rows unchanged."""
    scheduled, before = batch.num_scheduled_tokens.copy(), batch.num_computed_tokens.copy()
    scheduled[: batch.num_decodes] += ahead
    before[: batch.num_decodes] = computed
    return replace(batch, num_computed_tokens=before, num_scheduled_tokens=scheduled)


def of_variant(batch: ScheduledBatch, variant: StepVariant) -> ScheduledBatch:
    """Return the batch with every row of these kinds: its numbers name the first of each, such as
    the first adapter slot, which may be an empty one."""
    numbers: dict[str, Any] = dict.fromkeys(variant.columns, 0)
    return replace(batch, new_rows=tuple(replace(row, **numbers) for row in batch.new_rows))


def _verify_batches(config: Config, cache: CacheShape) -> Iterator[ScheduledBatch]:
    """Yield two rows with each number of tokens ahead that they may compute: by graphs, and with a
    prompt, eagerly."""
    most = config.speculative.num_tokens if config.speculative is not None else 0
    rows = min(2, config.scheduler.max_num_seqs)
    for ahead in range(1, min(most, config.model.max_model_len - 2) + 1):
        yield computing_ahead(decode_batch([2 + ahead] * rows, cache), ahead)
        beside = min(rows, config.scheduler.max_num_seqs - 1)
        if beside and beside * (1 + ahead) < config.scheduler.max_num_batched_tokens:
            yield computing_ahead(decode_batch([2 + ahead] * beside, cache, chunk=1), ahead)


def _sample_masked(steps: StepRunner, config: Config, cache: CacheShape) -> None:
    """Sample as guided rows are: apart from their layers, under a mask that allows everything."""
    bits = np.full((1, -(-config.model.vocab_size // 32)), -1, dtype=np.int32)
    batch = decode_batch([2], cache)
    step = steps.submit(replace(batch, samples_later=True))
    steps.sample(step, TokenMask(np.zeros(1, dtype=np.int32), bits))
    steps.collect(step)


def _run_behind_unknown(steps: StepRunner, config: Config, cache: CacheShape) -> None:
    """Run a decode with a prompt, before the host knows how many tokens the previous step gave."""
    scheduler = config.scheduler
    fits = scheduler.max_num_seqs > 1 and scheduler.max_num_batched_tokens > 1
    if config.speculative is None or not fits or config.model.max_model_len < 4:
        return
    outstanding = steps.submit(computing_ahead(decode_batch([3], cache), 1))
    behind = steps.submit(decode_batch([3], cache, chunk=1))
    steps.collect(outstanding)
    steps.collect(behind)


def _tables(tokens: int, cache: CacheShape, first: int = 0) -> tuple[list[int], ...]:
    """Return the blocks from the first on, repeated if there are fewer (a window keeps few)."""
    count = -(-tokens // cache.block_size)
    blocks = [index % cache.num_blocks for index in range(first, first + count)]
    return (blocks,) * cache.num_groups


def _row(
    slot: int, tokens: int, tables: tuple[list[int], ...], params: SamplingParams | None
) -> NewRow:
    return NewRow(
        token_ids=np.zeros(tokens, dtype=np.int32),
        block_ids=tables,
        params=params or SamplingParams(),
        images=(),
        **(EMPTY_ROW | {"slot": slot, "request_id": slot, "num_prompt_tokens": tokens}),
    )


def _batch(
    rows: list[NewRow],
    computed: np.ndarray[tuple[int], np.dtype[np.int32]],
    scheduled: np.ndarray[tuple[int], np.dtype[np.int32]],
    num_decodes: int,
) -> ScheduledBatch:
    return ScheduledBatch(
        new_rows=tuple(rows),
        block_appends=np.zeros((0, 3), dtype=np.int32),
        slots=np.arange(len(rows), dtype=np.intp),
        req_ids=np.arange(len(rows), dtype=np.int64),
        num_computed_tokens=computed,
        num_scheduled_tokens=scheduled,
        samples=np.ones(len(rows), dtype=np.bool_),
        num_decodes=num_decodes,
    )
