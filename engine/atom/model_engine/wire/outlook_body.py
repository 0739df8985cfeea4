"""OutlookBody: the latencies that a core predicts of a request that came now, and its steps so far.

It travels with the statistics of a rank. The core predicts once it has learned its own step times;
until then a server may predict by a table of rates.
"""

from __future__ import annotations

import enum

import msgspec


class Limit(enum.StrEnum):
    """The resource that a first token waits for."""

    NOTHING = "nothing"
    COMPUTE = "compute"
    SEQUENCES = "sequences"
    KV_CACHE = "kv_cache"


class Predicted(msgspec.Struct, frozen=True):
    """The latencies of a request that comes now. request_seconds: that each further request in the
    queue adds to the first token; counted: requests without a first token that the prediction knows
    of; limit: of the first token; load: share of the time that the work of the last half minute
    would take in full steps; step, row, token: the learned seconds of a step, of a decode row in
    it, and of a prompt token in it."""

    ttft_seconds: float
    itl_seconds: float
    request_seconds: float
    counted: int
    limit: Limit
    step: float
    row: float
    token: float
    load: float = 0.0


class StepTotals(msgspec.Struct, frozen=True):
    """The steps of a core whose time was measured, added up. rows: decodes; context_tokens: that
    these attended to; prompt_steps: steps that had prompt tokens."""

    steps: int = 0
    seconds: float = 0.0
    rows: int = 0
    context_tokens: int = 0
    prompt_tokens: int = 0
    prompt_steps: int = 0


class OutlookBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outlook of a core. predicted: None until the core has learned its step times."""

    steps: StepTotals = StepTotals()
    predicted: Predicted | None = None
