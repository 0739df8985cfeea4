"""A row carries as many drafts as pay: by how its drafts did, and what the step costs with them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from atom.sizing.model_facts import ModelFacts
from atom.speculation.draft_lengths import AdaptiveDraftLengths, draft_lengths
from atom.speculation.step_cost import DraftingLayers, StepCost, step_cost
from atom.speculative_config import SpeculativeConfig
from tests.support.models.parameter_count import parameter_count

GPU = StepCost(128.0)
NOTHING = np.zeros(512, dtype=np.int32)  # computed of each slot
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
    "intermediate_size": 128, "max_position_embeddings": 512, "num_experts": 16,
    "num_experts_per_tok": 4, "moe_intermediate_size": 64, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip


def after(lengths: AdaptiveDraftLengths, accepted: int, drafted: int, rows: int, steps: int) -> int:
    """What the first of so many rows carries when in so many steps so many drafts held."""
    slots = np.arange(rows)
    for slot in slots:
        lengths.enter(slot)
    for _ in range(steps):
        lengths.observe(slots, np.full(rows, drafted, np.int32), np.full(rows, accepted, np.int32))
    # Behind the draft that is tried at once though it does not pay.
    return int([lengths.choose(slots, NOTHING)[0] for _ in range(4)][-1])


def test_drafts_that_hold_are_many_and_those_that_do_not_are_none() -> None:
    lengths = AdaptiveDraftLengths(7, 256, GPU)
    assert after(lengths, 7, 7, rows=1, steps=8) == 7
    assert after(lengths, 0, 7, rows=1, steps=40) < 3
    assert after(lengths, 0, 7, rows=64, steps=8) == 0


def test_the_more_rows_share_a_step_the_fewer_drafts_pay() -> None:
    chosen = [
        after(AdaptiveDraftLengths(7, 512, GPU), 2, 3, rows=rows, steps=8) for rows in (1, 32, 512)
    ]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > chosen[-1]


def test_rows_are_judged_one_by_one() -> None:
    lengths = AdaptiveDraftLengths(4, 2, GPU)
    slots = np.arange(2)
    for slot in slots:
        lengths.enter(slot)
    for _ in range(12):
        lengths.observe(slots, np.array([4, 4], np.int32), np.array([4, 0], np.int32))
    good, bad = lengths.choose(slots, NOTHING).tolist()
    assert good == 4
    assert bad < good
    lengths.enter(1)  # another request has no past
    assert lengths.choose(slots, NOTHING)[1] > bad


class Dear:
    """Steps of which each draft costs so much of a step without."""

    def __init__(self, share: float) -> None:
        self._share = share

    def of_steps(
        self, rows: int, lengths: NDArray[np.float64], context: float = 0.0
    ) -> NDArray[np.float64]:
        return 1.0 + self._share * lengths


def asked(lengths: AdaptiveDraftLengths, steps: int) -> dict[int, int]:
    """How many drafts each of so many steps asks for that asks at all; none is ever found."""
    slots, found = np.arange(1), {}
    for step in range(steps):
        if chosen := int(lengths.choose(slots, NOTHING)[0]):
            found[step] = chosen
            lengths.miss(slots)
    return found


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_what_pays_for_nothing_is_tried_in_a_small_share_of_the_time(share: float) -> None:
    lengths = AdaptiveDraftLengths(4, 1, Dear(share))
    lengths.enter(0)
    asked(lengths, 300)
    later = asked(lengths, 4000)
    assert 0.003 < len(later) * share / 4000 <= 0.005
    assert len(set(np.diff(list(later)))) == 1
    assert set(later.values()) == {1}  # each is computed, found or not
    lengths.enter(0)
    assert 0 in asked(lengths, 1)  # another request has no past


def test_tries_become_rarer() -> None:
    lengths = AdaptiveDraftLengths(4, 1, Dear(1.0))
    lengths.enter(0)
    assert list(asked(lengths, 500)) == [0, 4, 20, 84, 285, 486]
    lengths = AdaptiveDraftLengths(4, 1, Dear(2.0))
    lengths.enter(0)
    assert list(asked(lengths, 500)) == [401]  # too dear to try at once


def test_where_drafts_cost_next_to_nothing_they_are_always_asked_for() -> None:
    lengths = AdaptiveDraftLengths(4, 1, Dear(0.0))
    lengths.enter(0)
    assert len(asked(lengths, 50)) == 50


def test_a_draft_that_holds_ends_the_waiting() -> None:
    lengths, slots = AdaptiveDraftLengths(4, 1, Dear(0.2)), np.arange(1)
    lengths.enter(0)
    asked(lengths, 300)
    while not lengths.choose(slots, NOTHING)[0]:
        pass
    lengths.observe(slots, np.array([1], np.int32), np.array([1], np.int32))
    assert lengths.choose(slots, NOTHING)[0] > 1


def test_drafts_go_on_behind_some_that_held_and_end_behind_one_that_failed() -> None:
    """Of a text of which parts repeat: runs of drafts that hold, and long ways between."""
    lengths, slots = AdaptiveDraftLengths(4, 1, Dear(0.15)), np.arange(1)
    lengths.enter(0)
    four, none = np.array([4], np.int32), np.array([0], np.int32)
    for _ in range(20):
        for _ in range(5):
            lengths.observe(slots, four, four)
        lengths.observe(slots, four, none)
        for _ in range(20):
            lengths.miss(slots)
    behind_failures = int(lengths.choose(slots, NOTHING)[0])
    lengths.observe(slots, four, four)
    behind_a_run = int(lengths.choose(slots, NOTHING)[0])
    assert (behind_failures, behind_a_run) == (1, 4)


def test_experts_that_further_tokens_read_are_counted() -> None:
    dense, experts = StepCost(128.0), StepCost(128.0, experts_bytes=0.9, expert_parallel=1 / 16)
    few = np.array([1.0, 5.0])
    assert experts.of(few)[1] / experts.of(few)[0] > 2 * dense.of(few)[1] / dense.of(few)[0]
    many = np.array([200.0, 1000.0])
    assert experts.of(many)[1] / experts.of(many)[0] < 5


def test_a_models_cost_is_read_from_its_shape() -> None:
    cost = step_cost(ModelFacts.from_hf_config(MOE), on_cpu=False)
    assert cost.expert_parallel == 1 / 4
    # Two layers of 16 experts with three matrices of 64 x 64 each, of all parameters.
    assert round(cost.experts_bytes * parameter_count(ModelFacts.from_hf_config(MOE))) == (
        2 * 16 * 3 * 64 * 64
    )


def test_what_a_layer_takes_for_a_draft_is_counted() -> None:
    facts = ModelFacts.from_hf_config(MOE)
    plain = step_cost(facts, on_cpu=True)
    layers = step_cost(facts, on_cpu=True, drafting=DraftingLayers(facts))
    assert plain.a_draft == 0
    assert layers.a_draft > 1  # a draft model as large as the model, and its launches
    dear = AdaptiveDraftLengths(7, 1, StepCost(128.0, a_draft=0.5))
    cheap = AdaptiveDraftLengths(7, 1, StepCost(128.0, a_draft=0.05))
    few, many = (after(lengths, 2, 3, rows=1, steps=8) for lengths in (dear, cheap))
    assert few < many


def test_a_fixed_number_is_an_option() -> None:
    fixed = draft_lengths(SpeculativeConfig(num_tokens=3, adaptive=False), 8, GPU)
    assert fixed.choose(np.arange(2), NOTHING).tolist() == [3, 3]
