"""A row carries as many drafts as pay: by how its drafts did, and what the step costs with them."""

from __future__ import annotations

import numpy as np

from atom.sizing.model_facts import ModelFacts
from atom.speculation.draft_lengths import AdaptiveDraftLengths, draft_lengths
from atom.speculation.step_cost import DraftingLayers, StepCost, step_cost
from atom.speculative_config import SpeculativeConfig

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
    return int(lengths.choose(slots, NOTHING)[0])


def test_drafts_that_hold_are_many_and_those_that_do_not_are_none() -> None:
    lengths = AdaptiveDraftLengths(7, 256, GPU)
    assert after(lengths, 7, 7, rows=1, steps=8) == 7
    assert after(lengths, 0, 7, rows=1, steps=8) < 3
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


def test_a_row_without_drafts_tries_again_now_and_then() -> None:
    lengths, slots = AdaptiveDraftLengths(4, 300, GPU), np.arange(300)
    assert after(lengths, 0, 4, rows=300, steps=20) == 0
    chosen = [int(lengths.choose(slots, NOTHING)[0]) for _ in range(128)]
    assert sum(chosen) == 4


def test_a_row_for_which_nothing_is_found_is_asked_less_and_less_often() -> None:
    lengths, slots = AdaptiveDraftLengths(4, 1, GPU), np.arange(1)
    lengths.enter(0)
    asked = []
    for step in range(100):
        if chosen := lengths.choose(slots, NOTHING)[0]:
            assert chosen == (1 if asked else 4)  # each is computed, found or not
            asked.append(step)
            lengths.miss(slots)
    apart = np.diff(asked).tolist()
    assert apart[:5] == [2, 3, 5, 9, 17]
    assert set(apart[4:]) == {17}
    lengths.enter(0)
    assert lengths.choose(slots, NOTHING)[0] > 0  # another request is asked at once


def test_drafts_that_are_found_again_end_the_waiting() -> None:
    lengths, slots = AdaptiveDraftLengths(4, 1, GPU), np.arange(1)
    lengths.enter(0)
    for _ in range(4):
        lengths.miss(slots)
    while not lengths.choose(slots, NOTHING)[0]:
        pass
    lengths.observe(slots, np.array([4], np.int32), np.array([4], np.int32))
    assert lengths.choose(slots, NOTHING)[0] == 4
    lengths.miss(slots)
    assert [bool(lengths.choose(slots, NOTHING)[0]) for _ in range(2)] == [False, True]


def test_experts_that_further_tokens_read_are_counted() -> None:
    dense, experts = StepCost(128.0), StepCost(128.0, experts_bytes=0.9, expert_share=1 / 16)
    few = np.array([1.0, 5.0])
    assert experts.of(few)[1] / experts.of(few)[0] > 2 * dense.of(few)[1] / dense.of(few)[0]
    many = np.array([200.0, 1000.0])
    assert experts.of(many)[1] / experts.of(many)[0] < 5


def test_a_models_cost_is_read_from_its_shape() -> None:
    cost = step_cost(ModelFacts.from_hf_config(MOE), on_cpu=False)
    assert cost.expert_share == 1 / 4
    # Two layers of 16 experts with three matrices of 64 x 64 each, of all parameters.
    assert round(cost.experts_bytes * ModelFacts.from_hf_config(MOE).parameter_count()) == (
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
