"""PairVerdict: if separate pods for prompts and answers pay, by the figures of the plan. Pure.

Both times are those of the device at its published peaks (atom.sizing.cards): each is a bound, and
their ratio tells how the work is divided. Prompts are bound by products of matrices, answers by
reads of weights and KV cache. Nothing is said without a typical request, or of unknown devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing import ModelFacts
from atom.sizing.cards import CARDS, Card, Precision
from atom.sizing.options.least_tokens import DEFAULT_LEAST_TOKENS
from atom.sizing.weights.layer_matrices import token_elements
from atom_operator.api.v1alpha1.disaggregation import TrafficSpec
from atom_operator.domain import Plan
from atom_operator.sizes import size_text

_LEAST_BUSY = 0.5  # share of the prefill devices that has work
_TOLD_FIELD = "spec.disaggregation.traffic"


@dataclass(frozen=True, slots=True)
class PairFigures:
    """The device seconds of a typical request. busy: the share of the prefill devices that is
    computing while every decode device is; gap_seconds: the least step of an undivided pod that
    computes a whole chunk of a prompt, which its running answers wait for."""

    prompt_seconds: float
    answer_seconds: float
    busy: float
    gap_seconds: float
    page_bytes: int


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """State whether separate pods pay, with the reason. pays: None if that cannot be told."""

    pays: bool | None
    words: str


def judge_pair(decode: Plan, prefill: Plan, traffic: TrafficSpec | None) -> PairVerdict:
    """State whether the pods of both plans pay, compared with as many undivided ones."""
    if traffic is None:
        words = f"it cannot be told whether separate pods pay; give {_TOLD_FIELD}"
        return PairVerdict(None, words)
    transfer = decode.engine.serving.transfer
    least = (transfer.least_tokens if transfer is not None else None) or DEFAULT_LEAST_TOKENS
    if traffic.prompt_tokens < least:
        words = (
            f"prompts of {traffic.prompt_tokens:,} tokens are computed where they are answered, "
            f"below the {least:,} of spec.disaggregation.decide; serve undivided pods"
        )
        return PairVerdict(False, words)
    figures = pair_figures(decode, prefill, traffic)
    if figures is None:
        words = "it cannot be told whether separate pods pay: model or device are unknown"
        return PairVerdict(None, words)
    return PairVerdict(figures.busy >= _LEAST_BUSY, _words(figures))


def pair_figures(decode: Plan, prefill: Plan, traffic: TrafficSpec) -> PairFigures | None:
    """Compute the figures of a pair; None if the model or a device is unknown."""
    facts, capacity = decode.model.facts, decode.capacity.capacity
    reads, computes = _card(decode), _card(prefill)
    if facts is None or capacity is None or reads is None or computes is None:
        return None
    prompt, answer = traffic.prompt_tokens, traffic.answer_tokens
    each = prompt + answer
    copies = decode.engine.data_parallel
    held = max(1, min(decode.engine.scheduler.max_num_seqs, capacity.kv_tokens // copies // each))
    kv_bytes = capacity.kv_bytes_per_token * (prompt + answer // 2)
    step_seconds = (capacity.weights_bytes + held * kv_bytes) / reads.bytes_per_second
    prompt_seconds = prompt * _token_seconds(facts, computes)
    answer_seconds = answer * step_seconds / held * decode.engine.tensor_parallel
    wanted = prompt_seconds / answer_seconds * _devices(decode)
    asked = _devices(prefill)
    return PairFigures(
        prompt_seconds=prompt_seconds,
        answer_seconds=answer_seconds,
        busy=wanted / asked if asked else 0.0,
        gap_seconds=decode.engine.scheduler.max_num_batched_tokens
        * _token_seconds(facts, reads)
        / decode.engine.tensor_parallel,
        page_bytes=capacity.kv_bytes_per_token * decode.engine.tensor_parallel * prompt,
    )


def _words(figures: PairFigures) -> str:
    total = figures.prompt_seconds + figures.answer_seconds
    share = 100 * figures.prompt_seconds / total
    facts = (
        f"at the device's peaks a prompt takes {figures.prompt_seconds:.2g} device seconds "
        f"({share:.0f} % of a request) and moves {size_text(figures.page_bytes)}; an undivided pod "
        f"delays its answers by {1000 * figures.gap_seconds:.0f} ms or more for each chunk"
    )
    if figures.busy < _LEAST_BUSY:
        return (
            f"separate pods do not pay at this size: {100 * figures.busy:.0f} % of the prefill "
            f"devices have work; {facts}; ask for fewer prefill pods, or serve undivided pods with "
            "a smaller spec.engine.maxNumBatchedTokens"
        )
    more = ""
    if figures.busy > 1 / _LEAST_BUSY:
        more = f"; {figures.busy:.1f} times as many prefill devices would have work"
    return f"separate pods pay if even gaps between tokens matter: {facts}{more}"


def _token_seconds(facts: ModelFacts, card: Card) -> float:
    """Return the device seconds of one token of a prompt."""
    return 2.0 * token_elements(facts) / card.flops_per_second(Precision.WIDE)


def _card(plan: Plan) -> Card | None:
    return CARDS.get(plan.accelerator.product or "")


def _devices(plan: Plan) -> int:
    return plan.scale.replicas * plan.engine.devices
