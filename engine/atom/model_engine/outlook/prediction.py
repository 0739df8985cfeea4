"""The latencies of a request that came now, by arithmetic over the queue and learned step times.

The first token waits for the slowest of three things: prompt tokens ahead of it, computed in chunks
within a step's bounds; a slot; and KV blocks, which rows give back as they end. It is no simulation
of the scheduler: the cost must not depend on the queue's length. Pure; used by Outlook.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from atom.model_engine.outlook.step_costs import Costs
from atom.model_engine.schedule.step_time import LEAST_TOKENS
from atom.model_engine.wire.outlook_body import Limit, Predicted


@dataclass(frozen=True, slots=True)
class Ahead:
    """The work that is there. decodes: rows that generate; pending: requests without a first token;
    prompt_tokens: of these, still to compute; free_rows, free_tokens: slots, and tokens that free
    blocks hold; waiting: of the pending requests, those without a slot."""

    decodes: int = 0
    pending: int = 0
    waiting: int = 0
    prompt_tokens: float = 0.0
    free_rows: int = 1
    free_tokens: float = math.inf


@dataclass(frozen=True, slots=True)
class Typical:
    """The usual request. prompt_tokens: that are computed; output_tokens; held_tokens: of its KV
    cache; step_tokens: prompt tokens of a step."""

    prompt_tokens: float
    output_tokens: float
    held_tokens: float
    step_tokens: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a step: its tokens, and its seconds if it has prompts and answers (0: none)."""

    batched_tokens: int
    step_seconds: float


def predict(ahead: Ahead, costs: Costs, typical: Typical, bounds: Bounds) -> Predicted:
    """Predict a request of the usual length that comes now."""
    own = max(1.0, typical.prompt_tokens)
    chunk = _chunk(ahead.decodes, costs, bounds)
    plain = costs.seconds(ahead.decodes, 0)
    busy = ahead.decodes + ahead.pending > 0
    rest = 0.5 * costs.seconds(ahead.decodes, min(ahead.prompt_tokens, chunk)) if busy else 0.0
    alone = rest + _prompt_seconds(own, chunk, plain, costs)
    compute = rest + _prompt_seconds(ahead.prompt_tokens + own, chunk, plain, costs)
    itl = costs.seconds(ahead.decodes + 1, _beside(ahead, typical, chunk))
    # Rows that leave are followed by prompts, which lengthen steps as they have done so far.
    usual = max(1e-9, costs.seconds(ahead.decodes, typical.step_tokens))
    leaving = max(1, ahead.decodes) / (max(1.0, typical.output_tokens) * usual)
    slots = max(0, ahead.waiting + 1 - ahead.free_rows) / leaving
    short = (ahead.waiting + 1) * typical.held_tokens - ahead.free_tokens
    blocks = max(0.0, short) / (max(1.0, typical.held_tokens) * leaving)
    waits = {
        Limit.COMPUTE: compute,
        Limit.SEQUENCES: alone + slots,
        Limit.KV_CACHE: alone + blocks,
    }
    limit = max(waits, key=lambda each: waits[each])
    each = _prompt_seconds(own, chunk, plain, costs)
    if limit is not Limit.COMPUTE:
        each = max(each, 1.0 / leaving)
    is_free = waits[limit] <= alone * (1 + 1e-9)
    return Predicted(
        ttft_seconds=waits[limit],
        itl_seconds=itl,
        request_seconds=each,
        counted=ahead.pending,
        limit=Limit.NOTHING if is_free else limit,
        step=costs.step,
        row=costs.row,
        token=costs.token,
    )


def _chunk(decodes: int, costs: Costs, bounds: Bounds) -> float:
    """Return the prompt tokens that a step computes beside so many answers."""
    most = float(max(1, bounds.batched_tokens - decodes))
    if not decodes or not bounds.step_seconds or not costs.token:
        return most
    return min(most, max(LEAST_TOKENS, bounds.step_seconds / costs.token))


def _prompt_seconds(tokens: float, chunk: float, plain: float, costs: Costs) -> float:
    """Return the seconds of the steps that compute so many prompt tokens."""
    steps = max(1.0, tokens / chunk)
    return steps * plain + costs.token * tokens


def _beside(ahead: Ahead, typical: Typical, chunk: float) -> float:
    """Return the prompt tokens that the next steps have beside answers."""
    if ahead.prompt_tokens >= chunk and ahead.free_rows > ahead.waiting:
        return chunk
    return min(chunk, max(typical.step_tokens, 0.0)) if ahead.decodes else 0.0
