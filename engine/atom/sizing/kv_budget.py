"""The KV cache budget of one device: its blocks, and how many sequences they hold.

Callers give the memory that is already spoken for: the engine measured it, the operator predicts
it (atom.sizing.overheads). The result is a value; no configuration is written back. Layers
with a sliding window take their blocks from the same pool as the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from atom.sizing.errors import DoesNotFitError, DoesNotFitReason
from atom.sizing.kv_layout import KvLayout

_MIB = 1024**2
_TABLE_START_TOKENS = 1024
_SMALL_TABLE_START_TOKENS = 128


@dataclass(frozen=True, slots=True)
class KvBudget:
    """Blocks of the KV cache of one device, for all groups of layers together.

    `available_bytes` is what was left for the cache; `limited_by` says whether that decided the
    number of blocks, or `max_num_seqs` full sequences need no more, or the user chose them.
    `tokens` are those of sequences of the full length that fill the blocks.
    """

    num_blocks: int
    block_size: int  # tokens per block
    block_bytes: int
    limited_by: Literal["memory", "max_num_seqs", "num_kv_blocks"]
    available_bytes: int
    tokens: int
    layout: KvLayout

    def sequences(self, tokens: int) -> int:
        """Sequences of `tokens` that fit at the same time."""
        return self.num_blocks // self.layout.blocks_of_sequence(tokens, self.block_size)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many sequences of `context_tokens` run at the same time."""

    context_tokens: int
    sequences: int


def plan_kv_cache(
    *,
    total_bytes: int,
    utilization: float,
    weights_bytes: int,
    activation_bytes: int,
    overhead_bytes: int,
    layout: KvLayout,
    block_size: int,
    max_num_seqs: int,
    max_model_len: int,
    max_num_batched_tokens: int,
) -> KvBudget:
    """Blocks that fit into total x utilization - weights - activation - overhead.

    Never more than `max_num_seqs` sequences of `max_model_len` and a step beside them can use.
    Raises DoesNotFitError when nothing is left beside the weights, or not enough for one sequence
    of `max_model_len`.
    """
    budget_bytes = int(total_bytes * utilization)
    available_bytes = budget_bytes - weights_bytes - activation_bytes - overhead_bytes
    least_bytes = block_bytes = block_size * layout.bytes_per_token
    if available_bytes < least_bytes:
        needed_bytes = budget_bytes - available_bytes + least_bytes
        raise DoesNotFitError(
            f"the weights ({_mib(weights_bytes)}), activations ({_mib(activation_bytes)}), runtime "
            f"({_mib(overhead_bytes)}) and one KV block need {_mib(needed_bytes)}, but only "
            f"{_mib(budget_bytes)} of the device's {_mib(total_bytes)} may be used (memory "
            f"utilization {utilization:g}); use a device with more memory, a higher utilization, "
            "a smaller model, or fewer tokens per step",
            reason=DoesNotFitReason.WEIGHTS,
            needed_bytes=needed_bytes,
            available_bytes=budget_bytes,
        )
    sequence_bytes = layout.sequence_bytes(max_model_len, block_size)
    most_blocks = -(-max_model_len // block_size)
    if available_bytes < sequence_bytes:
        blocks = available_bytes // block_bytes
        longest = layout.longest_blocks(blocks, block_size, most_blocks) * block_size
        raise DoesNotFitError(
            f"one sequence of {max_model_len} tokens needs "
            f"{_mib(sequence_bytes)} of KV cache, but "
            f"{_mib(available_bytes)} are left beside weights ({_mib(weights_bytes)}), "
            f"activations ({_mib(activation_bytes)}) and runtime ({_mib(overhead_bytes)}); "
            f"a maximum model length of at most {longest} tokens fits",
            reason=DoesNotFitReason.CONTEXT,
            needed_bytes=sequence_bytes,
            available_bytes=available_bytes,
            max_context_tokens=longest,
        )
    fitting_blocks = available_bytes // block_bytes
    needed_blocks = max_num_seqs * layout.blocks_of_sequence(max_model_len, block_size)
    useful_blocks = needed_blocks + layout.step_blocks(max_num_batched_tokens, block_size)
    filled_blocks = min(fitting_blocks, needed_blocks)
    return KvBudget(
        num_blocks=min(fitting_blocks, useful_blocks),
        block_size=block_size,
        block_bytes=block_bytes,
        limited_by="memory" if fitting_blocks <= useful_blocks else "max_num_seqs",
        available_bytes=available_bytes,
        tokens=filling_tokens(layout, filled_blocks, block_size, max_model_len),
        layout=layout,
    )


def fewer_blocks(budget: KvBudget, num_blocks: int, max_model_len: int) -> KvBudget:
    """The budget with `num_blocks` at most: what the smallest of several ranks has room for."""
    if num_blocks >= budget.num_blocks:
        return budget
    layout, block_size = budget.layout, budget.block_size
    tokens = min(budget.tokens, filling_tokens(layout, num_blocks, block_size, max_model_len))
    return replace(budget, num_blocks=num_blocks, tokens=tokens, limited_by="memory")


def filling_tokens(layout: KvLayout, num_blocks: int, block_size: int, max_model_len: int) -> int:
    """Tokens of sequences of `max_model_len` that fill the blocks, the last one perhaps shorter.

    Where every layer has a window: of them those that are kept."""
    sequence_blocks = layout.blocks_of_sequence(max_model_len, block_size)
    kept_blocks = layout.table_blocks(max_model_len, block_size)
    whole, rest = divmod(num_blocks, sequence_blocks)
    begun = layout.longest_blocks(rest, block_size, -(-max_model_len // block_size))
    return (whole * kept_blocks + min(begun, kept_blocks)) * block_size


def concurrency_table(
    budget: KvBudget,
    max_model_len: int,
    max_num_seqs: int,
    num_speculative_tokens: int = 0,
) -> tuple[Concurrency, ...]:
    """Sequences that fit at powers of two from 1024 tokens (128 if short) to the maximum, each with
    room for its drafts, which never reach past the maximum."""
    context = (
        _TABLE_START_TOKENS if max_model_len >= _TABLE_START_TOKENS else _SMALL_TABLE_START_TOKENS
    )
    lengths: list[int] = []
    while context < max_model_len:
        lengths.append(context)
        context *= 2
    lengths.append(max_model_len)
    held = [min(length + num_speculative_tokens, max_model_len) for length in lengths]
    return tuple(
        Concurrency(length, min(max_num_seqs, budget.sequences(tokens)))
        for length, tokens in zip(lengths, held, strict=True)
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.0f} MiB"
