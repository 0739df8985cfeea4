"""Self-check: before an engine is ready, hold its kernels against the reference, and remember it.

A few steps of drawn tokens run through one layer of each kind: prompts, decodes, chunks after a
history. The operations that they call are compared on the model's own weights, shapes and dtypes
(model_ops/self_check). A start whose kernels agree leaves a record in the cache folder: by default
an equal start of the same software on the same card and driver is not checked again. Called by
ModelRunner, while the KV cache has not taken the device's memory yet.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from atom.config import Config
from atom.errors import ConfigError
from atom.model_engine.batch import NewRow, ScheduledBatch
from atom.model_engine.row_columns import EMPTY_ROW
from atom.model_engine.runner.pages.layer_caches import CacheShape, LayerCaches
from atom.model_engine.runner.step_runner import StepRunner
from atom.model_engine.runner.step_variant import StepVariant
from atom.model_engine.runner.warm_up import (
    computing_ahead,
    decode_batch,
    describe_start,
    of_variant,
    prompt_batch,
)
from atom.model_ops.backends import ResolvedOps, load_backend
from atom.model_ops.backends.interface import Ops
from atom.model_ops.backends.op_names import FUSED_OPS, PAIRED_OPS
from atom.model_ops.self_check.shadowed_ops import Difference, ShadowedOps
from atom.sampling_params import SamplingParams
from atom.utils.cache_folder import cache_folder
from atom.utils.device import Device
from atom.utils.versions import software_versions

logger = logging.getLogger(__name__)

PHASE = "checking kernels"
_SECONDS = 10.0
# Of prompts, as many as fit into a step; the long one is more than products of few rows take.
_LENGTHS = (7, 1, 33, 75)
_LONG = 260
_CHUNK = 19
# Steps of one token: a token whose experts hang on a rounding is not compared.
_SINGLES = 3
_SHAPED = SamplingParams(temperature=0.7, top_k=20, top_p=0.95, min_p=0.01)
# By slot: the first draws the likeliest token, and the others may draw any.
_SAMPLED = (SamplingParams(temperature=0.0), _SHAPED, SamplingParams(temperature=1.0))
# The part of a fused operation that another backend computes at the least cost.
_CHEAP_PARTS = ("act_and_mul", "norm", "route", "short_convolution", "qk_norm_rope_store")
_DRIVERS = ("amdgpu", "nvidia")


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """The model of a check: its steps, the caches of its layers, and a context in which few of them
    run."""

    steps: StepRunner
    caches: LayerCaches
    few_layers: Callable[[], AbstractContextManager[None]]


class SelfCheck:
    """The check of one rank's start. spaces: the namespaces of operations that its layers have."""

    def __init__(
        self,
        config: Config,
        resolved: ResolvedOps,
        spaces: Sequence[Ops],
        device: Device,
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._resolved = resolved
        self._spaces = spaces
        self._device = device
        self._clock = time.monotonic
        self._ends = float("inf")
        self._shadowed = ShadowedOps(resolved, dtype, lambda: self._clock() < self._ends)

    def is_due(self, all_say: Callable[[bool], bool], *, with_others: bool) -> bool:
        """Return whether to check this start: not if checks are off, nor if an equal start on this
        card has passed on every rank. all_say: whether every rank says yes; with_others: the step's
        ranks are more than those."""
        asked = self._config.execution.self_check
        if asked == "off" or (asked == "auto" and not self._device.is_gpu):
            return False
        return asked == "on" or with_others or not all_say(self._record().exists())

    def keeping_originals(self) -> AbstractContextManager[None]:
        """Return a context of reading weights, which the check compares with prepared ones."""
        return self._shadowed.keeping_originals(self._spaces)

    def run(self, model: CheckedModel, progress: Callable[[str, float], None]) -> None:
        """Run the steps with a little cache, before the KV cache takes the device's memory, and
        compare the operations that they call. It takes no longer than ten seconds and the steps
        themselves."""
        progress(PHASE, 0.0)
        caches = model.caches
        cache = caches.shape(check_blocks(self._config, len(caches.layout.groups)))
        caches.allocate(cache.num_blocks)
        try:
            self._run(model, cache, progress)
        finally:
            caches.release()

    def _run(
        self, model: CheckedModel, cache: CacheShape, progress: Callable[[str, float], None]
    ) -> None:
        begun = self._clock()
        self._ends = begun + _SECONDS
        batches = list(check_batches(self._config, cache))
        with model.few_layers(), self._shadowed.watching(self._spaces):
            for done, batch in enumerate(batches):
                progress(PHASE, done / len(batches))
                model.steps.collect(model.steps.submit(batch))
            self._check_slots(model.steps, cache)
        held = self._shadowed.held
        logger.info(
            "self-check: %d operations in %d shapes compared with the reference in %.1f s: %s",
            *(len(held), sum(held.values()), self._clock() - begun, ", ".join(sorted(held))),
        )
        unheld = self._shadowed.unheld
        for why in dict.fromkeys(unheld.values()):
            ops = ", ".join(op for op, reason in unheld.items() if reason == why)
            logger.warning("self-check: some shapes were not compared: %s: %s", why, ops)

    def conclude(self, all_say: Callable[[bool], bool]) -> None:
        """Remember a start whose kernels agree. Raises `ConfigError` naming the differences, on
        every rank if there are any on one. all_say: whether every rank says yes."""
        differences = self._shadowed.differences
        agreed = all_say(not differences)
        if differences:
            raise ConfigError(_refusal(differences))
        if not agreed:
            raise ConfigError(
                "self-check: a kernel of another rank differs from the reference; see that rank's "
                "error, or start with --self-check=off"
            )
        if not self._shadowed.unheld.keys() - self._shadowed.held.keys():
            self._remember()

    def _check_slots(self, steps: StepRunner, cache: CacheShape) -> None:
        """Compare the operations by which a graph's step reads and writes slots."""
        ops, state = self._resolved.ops, steps.slots.device
        slots = torch.arange(min(2, state.padding_slot), device=state.last_token.device)
        inputs = ops.prepare_decode(slots, state, cache.block_size)
        ops.commit_tokens(slots, inputs.input_ids, state)

    # ---- the record ---------------------------------------------------------------------------

    def _key(self) -> dict[str, str]:
        return {
            "card": self._device.name if self._device.is_gpu else "cpu",
            "driver": driver_version(),
            "software": json.dumps(software_versions(), sort_keys=True),
            "backends": json.dumps(self._resolved.chosen, sort_keys=True),
            "start": hashlib.sha256(describe_start(self._config).encode()).hexdigest(),
        }

    def _record(self) -> Path:
        digest = hashlib.sha256(json.dumps(self._key(), sort_keys=True).encode()).hexdigest()
        return cache_folder("self_check") / f"{digest[:24]}.json"

    def _remember(self) -> None:
        path = self._record()
        written = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(json.dumps({**self._key(), "shapes": self._shadowed.held}, indent=1))
            written.replace(path)
        except OSError as error:  # the next start is checked, too
            logger.warning("self-check: its result is not remembered: %s", error)


def driver_version(root: Path = Path("/sys/module")) -> str:
    """Return the version of the card's driver; empty if the kernel tells none."""
    for name in _DRIVERS:
        file = root / name / "version"
        if file.exists():
            return f"{name} {file.read_text().strip()}"
    return ""


def _refusal(differences: Sequence[Difference]) -> str:
    """Describe differences, the worst of each operation, and the flags that avoid its kernel."""
    worst: dict[str, Difference] = {}
    for each in differences:
        if each.op not in worst or each.largest > worst[each.op].largest:
            worst[each.op] = each
    flags = " ".join(f"--op-backend {op}=torch_ref" for op in _remedy(worst.values()))
    return (
        f"self-check: {'; '.join(map(str, worst.values()))}; use {flags}, or "
        "--self-check=off to start all the same"
    )


def _remedy(differences: Iterable[Difference]) -> list[str]:
    """Return the operations to give to the reference. A fused one is composed of its parts if any
    of them has another backend, so it needs one only if no part differs itself."""
    given: dict[str, None] = {}
    for each in sorted(differences, key=lambda each: len(FUSED_OPS.get(each.op, ()))):
        parts = FUSED_OPS.get(each.op, (each.op,))
        if given.keys() & set(parts):
            continue
        part = next((name for name in _CHEAP_PARTS if name in parts), parts[0])
        together = {part}
        if load_backend(each.backend).arranges:
            together.update(*(pair for pair in PAIRED_OPS if part in pair))
        given.update(dict.fromkeys(sorted(together)))
    return list(given)


# ---- steps ------------------------------------------------------------------------------------


def check_blocks(config: Config, num_groups: int) -> int:
    """Return the blocks of the cache that the steps need, each group's apart."""
    return num_groups * len(_lengths(config)) * _blocks_per_row(config)


def _lengths(config: Config) -> list[int]:
    """Return the lengths of the prompts, the longest first: as many as may run, and fit into a
    step."""
    scheduler = config.scheduler
    longest = max(1, config.model.max_model_len - _CHUNK - _SINGLES - 2)
    left, found = scheduler.max_num_batched_tokens, list[int]()
    for length in _LENGTHS[: scheduler.max_num_seqs]:
        length = min(length, longest, left)
        if length > 0:
            found.append(length)
            left -= length
    return sorted(found, reverse=True)


def _blocks_per_row(config: Config) -> int:
    tokens = min(max(_LONG, _LENGTHS[-1] + _CHUNK + _SINGLES + 1), config.model.max_model_len)
    return -(-tokens // config.cache.block_size)


def check_batches(config: Config, cache: CacheShape) -> Iterator[ScheduledBatch]:
    """Yield prompts, their decodes, one row's decodes, a chunk beside decodes, and one long prompt.
    A row begins or goes on after what it has computed: its states hold no other tokens, and the
    results of any others are not defined."""
    draw = np.random.default_rng(0)
    lengths = _lengths(config)
    rows = [
        _row(config, cache, slot, draw.integers(0, config.model.vocab_size, length))
        for slot, length in enumerate(lengths)
    ]
    counts = np.array(lengths, np.int32)
    nothing, ones = np.zeros_like(counts), np.ones_like(counts)
    prompts = _batch(rows, (nothing, counts), 0)
    yield prompts
    if config.model.pooling is None:
        decodes = len(rows)
        yield _batch([], (counts, ones), decodes)
        for done in range(_SINGLES):
            yield _batch([], (counts[:1] + 1 + done, ones[:1]), 1)
        longest = config.model.max_model_len - 1
        chunk = min(_CHUNK, config.scheduler.max_num_batched_tokens - decodes + 1)
        computed = counts + 1
        computed[0] += _SINGLES
        if chunk > 1 and computed[-1] + chunk <= longest:
            # The last row goes on as a prompt.
            again = _row(
                config, cache, decodes - 1,
                draw.integers(0, config.model.vocab_size, computed[-1] + chunk),
            )  # fmt: skip
            scheduled = np.append(ones[:-1], chunk).astype(np.int32)
            yield _batch([again], (computed, scheduled), decodes - 1)
        ahead = config.speculative.num_tokens if config.speculative is not None else 0
        if 0 < ahead < min(config.scheduler.max_num_batched_tokens, longest - 2):
            yield prompt_batch([1], cache)
            yield computing_ahead(decode_batch([2 + ahead], cache), ahead)
    long = min(_LONG, config.scheduler.max_num_batched_tokens, config.model.max_model_len - 1)
    row = _row(config, cache, 0, draw.integers(0, config.model.vocab_size, long))
    yield _batch([row], (nothing[:1], np.array([long], np.int32)), 0)
    for variant in StepVariant.served_by(config).narrower()[1:]:
        yield of_variant(prompts, variant)
    yield prompts  # releases the variants' numbers


def _row(config: Config, cache: CacheShape, slot: int, tokens: np.ndarray) -> NewRow:
    """Make a row with blocks of its own in every group, more than its tokens need."""
    each = _blocks_per_row(config)
    rows = len(_lengths(config))
    tables = tuple(
        [block % cache.num_blocks for block in range(first * each, (first + 1) * each)]
        for first in range(slot, slot + rows * cache.num_groups, rows)
    )
    params = _SAMPLED[slot % len(_SAMPLED)]
    numbers = {"slot": slot, "request_id": slot, "num_prompt_tokens": len(tokens)}
    return NewRow(
        token_ids=tokens.astype(np.int32), block_ids=tables, params=params, images=(),
        **(EMPTY_ROW | numbers),
    )  # fmt: skip


def _batch(
    new_rows: list[NewRow], counts: tuple[np.ndarray, np.ndarray], num_decodes: int
) -> ScheduledBatch:
    """Make a step of the first slots; counts: tokens that are computed, and to compute."""
    computed, scheduled = counts
    rows = len(scheduled)
    return ScheduledBatch(
        new_rows=tuple(new_rows),
        block_appends=np.zeros((0, 3), dtype=np.int32),
        slots=np.arange(rows, dtype=np.intp),
        req_ids=np.arange(rows, dtype=np.int64),
        num_computed_tokens=computed.astype(np.int32),
        num_scheduled_tokens=scheduled.astype(np.int32),
        samples=np.ones(rows, dtype=np.bool_),
        num_decodes=num_decodes,
    )
