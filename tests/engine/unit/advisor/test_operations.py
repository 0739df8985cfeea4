"""The work of a step has the bytes of the plan: of weights, of the cache and of states, to the
byte; and the products that its matrices have."""

from __future__ import annotations

import numpy as np
import pytest

from atom.advisor.operations import UNPACKED_TOKENS, ModelWork, Operation, Work, model_work
from atom.advisor.step_shape import Chunk, StepShape
from atom.sizing import (
    KV_ELEMENTS,
    KvElement,
    ModelFacts,
    Sharding,
    kv_terms,
    online_scheme,
    state_terms,
    valid_tensor_parallel_sizes,
)
from atom.sizing.cards import Precision
from atom.sizing.weights.layer_matrices import token_elements
from benchmarks.workloads.shapes import SHAPES

MODELS = {
    name: ModelFacts.from_hf_config(SHAPES[name])
    for name in (
        "qwen3-0.6b",
        "qwen3-8b",
        "qwen3-8b-awq",
        "deepseek-v2-lite",
        "qwen3-30b-a3b",
        "qwen3-next-80b-a3b",
        "llama4-scout",
        "gpt-oss-20b-mxfp4",
    )
}
PLAIN = {name: facts for name, facts in MODELS.items() if facts.quantization is None}
PRODUCTS = Operation.MATRICES, Operation.PACKED
EVERYTHING = 1_000_000  # tokens that touch every expert


def work_of(facts: ModelFacts, ranks: int = 1, kv: KvElement = KV_ELEMENTS["bf16"]) -> ModelWork:
    return model_work(facts, kv, Sharding(ranks))


def of(work: ModelWork, shape: StepShape) -> dict[Operation, Work]:
    return {each.operation: each for each in work.of_step(shape)}


DIVIDED = [
    (name, ranks)
    for name, facts in MODELS.items()
    for ranks in valid_tensor_parallel_sizes(facts)
    if ranks in (1, 2, 4)
]


@pytest.mark.parametrize(("name", "ranks"), DIVIDED)
def test_weights_that_a_large_step_reads_are_those_of_the_plan(name: str, ranks: int) -> None:
    facts = MODELS[name]
    work = work_of(facts, ranks)
    rows = -(-facts.vocab_size // ranks) * facts.hidden_size * facts.weight_dtype_bytes
    embedding = 0 if facts.tie_word_embeddings else rows
    experts = sum(each.read_bytes for each in work.experts)
    assert work.head_bytes == rows
    assert work.matrices_bytes + experts + rows + embedding == facts.weight_bytes(
        tensor_parallel=ranks
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("element", KV_ELEMENTS)
def test_a_decode_reads_the_planned_bytes_of_every_token_that_it_sees(
    name: str, element: str
) -> None:
    facts, kv = MODELS[name], KV_ELEMENTS[element]
    contexts = (1, 127, 128, 5_000, 9_000)
    shape = StepShape(np.array(contexts, dtype=np.int64), len(contexts), (), len(contexts))
    terms = kv_terms(facts, kv)
    read = sum(
        term.layers * term.token_bytes * term.mask.seen(context)
        for term in terms
        for context in contexts
    )
    written = sum(term.layers * term.token_bytes for term in terms) * len(contexts)
    assert (
        of(work_of(facts, 1, kv), shape)[Operation.DECODE_ATTENTION].moved_bytes == read + written
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_state_is_read_and_written_once_a_sequence(name: str) -> None:
    facts = MODELS[name]
    found = of(work_of(facts), StepShape.decodes(7, 100))
    size = sum(term.layers * term.state_bytes for term in state_terms(facts))
    assert (Operation.STATES in found) == (size > 0)
    if size:
        assert found[Operation.STATES].moved_bytes == 2 * 7 * size


@pytest.mark.parametrize("name", PLAIN)
def test_products_are_two_for_each_element_that_a_token_goes_through(name: str) -> None:
    facts = PLAIN[name]
    found = of(work_of(facts), StepShape.prompt(100))
    layers = [
        found[Operation.MATRICES],
        *([found[Operation.EXPERTS]] if work_of(facts).experts else []),
    ]
    flops = sum(count for work in layers for _, count in work.flops)
    assert flops == pytest.approx(2 * 100 * token_elements(facts))
    head = dict(found[Operation.HEAD].flops)
    assert head == {Precision.WIDE: 2 * facts.vocab_size * facts.hidden_size}


def test_a_token_touches_the_experts_it_is_routed_to_and_many_tokens_all_of_them() -> None:
    work = work_of(MODELS["qwen3-30b-a3b"])
    (experts,) = work.experts
    assert experts.touched(1) == pytest.approx(8 / 128)
    assert experts.touched(EVERYTHING) == pytest.approx(1.0)


def test_only_formats_with_narrow_activations_multiply_narrow_numbers() -> None:
    facts = MODELS["qwen3-8b"]
    precisions = {
        name: {kind for kind, _ in work_of(facts.stored_as(online_scheme(name))).matrices_flops}
        for name in ("fp8", "mxfp4")
    }
    assert precisions == {"fp8": {Precision.FP8}, "mxfp4": {Precision.WIDE}}


@pytest.mark.parametrize("name", ["qwen3-8b", "llama4-scout", "gpt-oss-20b-mxfp4"])
def test_chunks_of_a_prompt_compute_the_pairs_of_the_whole_prompt(name: str) -> None:
    work = work_of(MODELS[name])
    whole = [attention.pairs(Chunk(0, 9_000)) for attention in work.attention]
    parts = [
        sum(attention.pairs(Chunk(first, 3_000)) for first in (0, 3_000, 6_000))
        for attention in work.attention
    ]
    assert parts == whole
    assert max(whole) == 9_000 * 9_001 // 2


def test_ranks_send_a_sum_twice_a_layer() -> None:
    facts = MODELS["qwen3-8b"]
    sums = of(work_of(facts, 4), StepShape.decodes(3, 10))[Operation.COLLECTIVES]
    row = facts.hidden_size * 2
    assert sums.moved_bytes == 2 * facts.num_layers * 3 * row * (2 * 3 / 4)
    assert Operation.COLLECTIVES not in of(work_of(facts), StepShape.decodes(3, 10))


@pytest.mark.parametrize("element", ["mxfp4", "awq"])
def test_matrices_of_four_bits_are_read_packed_by_few_tokens_and_unpacked_for_many(
    element: str,
) -> None:
    facts = ModelFacts.from_hf_config(SHAPES[f"qwen3-8b-{element}"])
    work, plain = work_of(facts), work_of(MODELS["qwen3-8b"])
    first = of(work, StepShape.decodes(1, 10))
    few = of(work, StepShape.decodes(UNPACKED_TOKENS - 1, 10))
    many = of(work, StepShape.decodes(UNPACKED_TOKENS, 10))
    assert (Operation.PACKED in first) == (element == "mxfp4"), "int4 has a kernel of one token"
    assert few[Operation.PACKED].moved_bytes == sum(each.read_bytes for each in work.packed)
    assert Operation.PACKED not in many
    assert Operation.UNPACKING not in few
    elements = sum(each.elements for each in work.packed)
    assert 2 * elements == pytest.approx(plain.matrices_bytes, rel=0.01)
    assert many[Operation.UNPACKING].moved_bytes > 2.5 * elements
    for found in (first, few, many):
        tokens = found[Operation.MATRICES].width
        parts = [found[each] for each in PRODUCTS if each in found]
        products = sum(count for each in parts for _, count in each.flops)
        assert products == pytest.approx(tokens * sum(each for _, each in plain.matrices_flops))


def test_inputs_are_quantised_once_for_the_products_that_share_them() -> None:
    facts = MODELS["qwen3-8b"].stored_as(online_scheme("fp8"))
    moved = of(work_of(facts), StepShape.prompt(10))[Operation.QUANTISING].moved_bytes
    hidden, inner = facts.hidden_size, 12_288
    assert moved == 3 * 10 * facts.num_layers * (3 * hidden + inner)
    assert Operation.QUANTISING not in of(work_of(MODELS["qwen3-8b"]), StepShape.prompt(10))
