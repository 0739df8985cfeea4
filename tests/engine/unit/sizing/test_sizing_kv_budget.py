"""The KV budget: hand-computed cases, limits, and refusals with their numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atom.sizing import (
    KV_ELEMENTS,
    CacheGroup,
    CacheKind,
    Concurrency,
    DeviceMemory,
    DoesNotFitError,
    Experts,
    KvBudget,
    KvElement,
    KvLayout,
    LayerFacts,
    MlpFacts,
    ModelFacts,
    RunLimits,
    Speculation,
    activation_bytes,
    communication_bytes,
    concurrency_table,
    kv_bytes_per_token,
    kv_layout,
    kv_terms,
    plan_kv_cache,
    runtime_overhead_bytes,
    tensor_parallel_problems,
    valid_tensor_parallel_sizes,
)
from atom.sizing.attention.indexer import Indexer
from atom.sizing.attention.kinds import GroupedAttention, Heads, Latent, LatentAttention
from atom.sizing.mask_rule import sliding_window
from atom.sizing.quantization.config import read_quantization
from atom.sizing.quantization.online import ONLINE
from atom.sizing.quantization.scheme import QuantizationScheme
from atom.sizing.weights import Sharding

LLAMA_70B = ModelFacts(
    architecture="LlamaForCausalLM",
    hidden_size=8192,
    vocab_size=128256,
    max_position_embeddings=131072,
    tie_word_embeddings=False,
    weight_dtype_bytes=2,
    layers=(
        LayerFacts(
            attention=GroupedAttention(heads=Heads(64, 8, 128)),
            mlp=MlpFacts(intermediate_size=28672),
        ),
    )
    * 80,
)


ONE_GROUP = KvLayout(token_bytes=(6, 4))


def with_kv_heads(kv_heads: int) -> ModelFacts:
    layer = LLAMA_70B.layer(0)
    attention = GroupedAttention(heads=Heads(64, kv_heads, 128))
    return replace(LLAMA_70B, layers=(replace(layer, attention=attention),) * 80)


def limits(**changes: int) -> RunLimits:
    usual = {
        "block_size": 16,
        "max_num_seqs": 100,
        "max_model_len": 64,
        "max_num_batched_tokens": 64,
    }
    return RunLimits(**{**usual, **changes})


def table(blocks: int, longest: int, sequences: int, drafts: int = 0) -> tuple[Concurrency, ...]:
    asked = limits(max_model_len=longest, max_num_seqs=sequences, num_speculative_tokens=drafts)
    return concurrency_table(KvBudget(blocks, 16, 0, "memory", 0, 0, KvLayout()), asked)


def plan(
    total_bytes: int = 10_000,
    weights_bytes: int = 4_000,
    layout: KvLayout = ONE_GROUP,
    **asked: int,
) -> KvBudget:
    memory = DeviceMemory(
        total_bytes=total_bytes,
        utilization=0.9,
        weights_bytes=weights_bytes,
        activation_bytes=600,
        overhead_bytes=400,
    )
    return plan_kv_cache(memory, layout, limits(**asked))


def peak(facts: ModelFacts, tokens: int = 100, drafts: int = 0, ranks: int = 1) -> int:
    asked = limits(max_num_seqs=10, max_num_batched_tokens=tokens, num_speculative_tokens=drafts)
    return activation_bytes(facts, asked, 2, Sharding(ranks))


@pytest.mark.parametrize(
    ("dtype_bytes", "ranks", "expected"),
    [(2, 1, 327_680), (2, 8, 40_960), (2, 4, 81_920), (4, 1, 655_360), (1, 8, 20_480)],
)
def test_kv_bytes_per_token(dtype_bytes: int, ranks: int, expected: int) -> None:
    assert kv_bytes_per_token(LLAMA_70B, dtype_bytes, ranks) == expected


def test_kv_heads_are_replicated_when_there_are_more_ranks_than_heads() -> None:
    two_heads = with_kv_heads(2)
    assert kv_bytes_per_token(two_heads, 2, 8) == kv_bytes_per_token(two_heads, 2, 2)


def test_blocks_are_what_memory_leaves_after_everything_else() -> None:
    budget = plan()  # 9000 - 5000 = 4000 bytes in blocks of 160
    assert budget == KvBudget(25, 16, 160, "memory", 4_000, 400, ONE_GROUP)


def test_blocks_stop_at_what_all_sequences_can_use() -> None:
    budget = plan(max_num_seqs=3)
    assert (budget.num_blocks, budget.limited_by) == (12, "max_num_seqs")


def test_a_block_size_that_does_not_divide_the_length_rounds_up_per_sequence() -> None:
    assert plan(max_num_seqs=3, max_model_len=65).num_blocks == 15


def test_weights_that_leave_no_room_are_refused_with_the_numbers() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        plan(weights_bytes=7_900)
    error = caught.value
    assert error.reason == "WeightsDoNotFit"
    assert (error.needed_bytes, error.available_bytes) == (7_900 + 1_000 + 160, 9_000)
    assert "0.9" in str(error)


def test_a_context_that_does_not_fit_is_refused_with_the_longest_that_does() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        plan(max_model_len=401)
    error = caught.value
    assert error.reason == "ContextDoesNotFit"
    assert (error.needed_bytes, error.available_bytes) == (26 * 160, 4_000)
    assert error.max_context_tokens == 400
    assert plan(max_model_len=400).num_blocks == 25


@pytest.mark.parametrize(
    ("max_model_len", "lengths"),
    [
        (100, [100]),
        (512, [128, 256, 512]),
        (1024, [1024]),
        (4096, [1024, 2048, 4096]),
        (5000, [1024, 2048, 4096, 5000]),
    ],
)
def test_concurrency_table_ends_at_the_full_context(max_model_len: int, lengths: list[int]) -> None:
    rows = table(1_000, max_model_len, 256)
    assert [row.context_tokens for row in rows] == lengths


def test_concurrency_is_bounded_by_slots_and_by_whole_blocks() -> None:
    assert table(130, 2048, 256) == (Concurrency(1024, 2), Concurrency(2048, 1))
    assert table(130, 512, 4)[0] == Concurrency(128, 4)


def test_a_draft_per_sequence_takes_a_block_more_but_at_the_full_context() -> None:
    without, with_drafts = (table(1300, 2048, 256, drafts) for drafts in (0, 1))
    assert without == (Concurrency(1024, 20), Concurrency(2048, 10))
    assert with_drafts == (Concurrency(1024, 1300 // 65), Concurrency(2048, 10))
    assert table(1299, 2048, 256, 1)[0] == Concurrency(1024, 19)


def test_tensor_parallel_sizes_follow_from_the_shape() -> None:
    assert valid_tensor_parallel_sizes(LLAMA_70B) == (1, 2, 4, 8)
    assert valid_tensor_parallel_sizes(with_kv_heads(2)) == (1, 2, 4, 8)
    assert valid_tensor_parallel_sizes(replace(LLAMA_70B, vocab_size=128258)) == (1, 2)
    assert "64 is not divisible by 3" in tensor_parallel_problems(LLAMA_70B, 3)[0]
    assert tensor_parallel_problems(LLAMA_70B, 16) == ("tensor parallel size 16 is outside 1..8",)


def test_activations_cover_the_widest_layer_and_the_logits() -> None:
    widest = 3 * 8192 + 3 * 28672
    assert peak(LLAMA_70B) == 100 * widest * 2 + 10 * 128256 * 12
    sharded = peak(LLAMA_70B, ranks=8)
    assert sharded < peak(LLAMA_70B)


@pytest.mark.parametrize(("tokens", "scores"), [(16, 16 * 163_840 * 4), (16_384, 128 * 2**20)])
def test_activations_cover_what_an_indexer_scores_and_selects(tokens: int, scores: int) -> None:
    latent = Latent(query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    sparse = replace(latent, index=Indexer(64, 128, 2048))
    of_all, of_some = (with_latent(each) for each in (latent, sparse))
    more = peak(of_some, tokens) - peak(of_all, tokens)
    assert more == scores + tokens * 2048 * 8
    short = replace(of_some, max_position_embeddings=2048)  # every token sees all before it
    assert peak(short, tokens) == peak(of_all, tokens)


def with_latent(latent: Latent) -> ModelFacts:
    layer = LLAMA_70B.layers[0]
    attention = LatentAttention(heads=Heads(64, 8, 128), latent=latent)
    layers = (replace(layer, attention=attention),)
    return replace(LLAMA_70B, layers=layers, max_position_embeddings=163_840)


def test_runtime_overhead_grows_with_a_gpu_and_not_with_a_cpu() -> None:
    assert runtime_overhead_bytes("cpu", 1 << 40) == runtime_overhead_bytes("cpu", 1 << 30)
    small, large = (runtime_overhead_bytes("gpu", gib << 30) for gib in (64, 192))
    assert large - small == int((192 << 30) * 0.02) - int((64 << 30) * 0.02)


@pytest.mark.parametrize(
    ("sharding", "nodes", "mib"),
    [
        (Sharding(1), 1, 0),
        (Sharding(2), 1, 256 + 128),
        (Sharding(16), 1, 256 + 128),  # of few rows, since each rank sends them to all others
        (Sharding(16), 2, 256),
        (Sharding(1, expert_parallel=True, sharing=2), 1, 256),
    ],
    ids=str,
)
def test_ranks_keep_buffers_to_reach_each_other_by(
    sharding: Sharding, nodes: int, mib: int
) -> None:
    assert communication_bytes(8192 * 2, sharding, nodes) == mib * 2**20


# Layers that keep everything, and as many twice over that see the newest 100 tokens: 10 bytes of a
# token in a block of any of the three groups.
HYBRID = KvLayout(
    (CacheGroup(), CacheGroup((), sliding_window(100)), CacheGroup((), sliding_window(100))), (6, 4)
)


def test_a_window_touches_a_block_more_than_it_fills() -> None:
    def blocks(window: int, block_size: int, lookahead: int = 0) -> int:
        return CacheGroup((), sliding_window(window)).blocks(1 << 20, block_size, lookahead)

    # 100 tokens that begin at the last place of a block: 1 + 6 x 16 + 3
    assert [blocks(tokens, 16) for tokens in (1, 2, 16, 17, 18, 100)] == [1, 2, 2, 2, 3, 8]
    assert blocks(100, 1) == 100
    assert blocks(97, 16, lookahead=3) == blocks(100, 16)


def test_what_a_token_sees_before_it_is_the_window_without_itself() -> None:
    def matched(window: int | None, block_size: int) -> int:
        return CacheGroup((), sliding_window(window)).matched_blocks(50, block_size)

    assert [matched(window, 16) for window in (1, 2, 17, 18, None)] == [0, 1, 1, 2, 50]
    assert [matched(window, 1) for window in (1, 2, 40, 80)] == [0, 1, 39, 50]


def test_a_windowed_group_stops_growing_at_its_window() -> None:
    assert HYBRID.blocks_of_sequence(16, 16) == 3
    assert HYBRID.blocks_of_sequence(128, 16) == 3 * 8
    assert HYBRID.blocks_of_sequence(1024, 16) == 64 + 2 * 8
    assert HYBRID.sequence_bytes(1024, 16) == (64 + 2 * 8) * 160
    assert HYBRID.window_blocks(1024, 16) == 2 * 8
    assert (HYBRID.bytes_per_token, HYBRID.growing_bytes_per_token) == (10, 10)


def test_sequences_of_a_hybrid_are_bounded_by_what_each_holds() -> None:
    # 2048 tokens: 128 + 2 x 8 blocks a sequence; 250 blocks hold one, and of a second 106: 16 of
    # windows and 90 that grow
    budget = plan(
        total_bytes=50_000, weights_bytes=4_000, layout=HYBRID, max_model_len=2048, max_num_seqs=100
    )
    assert budget.available_bytes == 40_000
    assert (budget.num_blocks, budget.block_bytes) == (250, 160)
    assert budget.limited_by == "memory"
    assert budget.tokens == 2048 + 90 * 16
    assert concurrency_table(budget, limits(max_model_len=2048)) == (
        Concurrency(1024, 250 // 80),
        Concurrency(2048, 1),
    )


def test_blocks_that_all_sequences_can_use_are_joined_by_a_steps() -> None:
    arguments: dict[str, Any] = {"layout": HYBRID, "max_model_len": 256, "max_num_seqs": 2}
    budget = plan(total_bytes=50_000, max_num_batched_tokens=130, **arguments)
    # two sequences of 16 + 2 x 8 blocks, and prompts of 130 tokens in two groups with windows
    assert (budget.num_blocks, budget.limited_by) == (2 * 32 + 2 * 9, "max_num_seqs")
    assert budget.tokens == 2 * 256
    assert plan(max_num_seqs=3, max_num_batched_tokens=1 << 20).num_blocks == 12


def test_a_hybrid_context_that_does_not_fit_names_the_longest_that_does() -> None:
    # 4000 bytes are 25 blocks: 16 of windows, and 9 that grow
    arguments: dict[str, Any] = {"layout": HYBRID, "max_num_seqs": 1}
    with pytest.raises(DoesNotFitError) as caught:
        plan(max_model_len=2048, **arguments)
    assert caught.value.max_context_tokens == 9 * 16
    assert caught.value.needed_bytes == (128 + 16) * 160
    assert plan(max_model_len=9 * 16, **arguments).num_blocks == 25
    with pytest.raises(DoesNotFitError):
        plan(max_model_len=9 * 16 + 1, **arguments)


def test_where_every_layer_slides_the_length_costs_nothing_beyond_the_window() -> None:
    layout = KvLayout((CacheGroup((), sliding_window(100)),), (10,))
    budget = plan(layout=layout, max_model_len=1 << 20)  # 4000 bytes; 8 blocks of 160 a sequence
    assert (budget.num_blocks, budget.block_bytes) == (3 * 8 + 1, 160)
    assert budget.tokens == 25 * 16
    table = concurrency_table(budget, limits(max_model_len=1 << 20))
    assert {row.sequences for row in table} == {3}


def test_a_cache_without_windows_is_planned_as_by_blocks() -> None:
    for total in range(6_300, 40_000, 997):
        budget = plan(total_bytes=total, max_num_seqs=9)
        left = int(total * 0.9) - 5_000
        assert budget.num_blocks == min(left // 160, 9 * 4)
        assert [row.sequences for row in concurrency_table(budget, limits(max_num_seqs=9))] == [
            min(9, budget.num_blocks // 4)
        ]


def test_drafts_widen_a_window_and_add_their_own_layers() -> None:
    layer = LLAMA_70B.layer(0)
    windowed = GroupedAttention(heads=Heads(64, 8, 128), mask=sliding_window(100))
    sliding = replace(layer, attention=windowed)
    facts = replace(LLAMA_70B, layers=(sliding, sliding), mtp_layers=(layer,))
    one = 2 * 8 * 128 * 2
    assert kv_layout(facts, KvElement(2)) == KvLayout(
        (CacheGroup((0, 1), sliding_window(100)),), (one, one)
    )
    with_drafts = kv_layout(facts, KvElement(2), 1, Speculation(3))
    sliders = (CacheGroup((0,), sliding_window(100)), CacheGroup((1,), sliding_window(100)))
    assert with_drafts == KvLayout((*sliders, CacheGroup((2,))), (one,), 3)
    assert with_drafts.blocks_of_sequence(1024, 16) == 64 + 2 * 8  # of 103 tokens
    proposer = replace(LLAMA_70B, layers=(layer,) * 5)
    other = kv_layout(facts, KvElement(2), 1, Speculation(3, proposer))
    assert [group.window for group in other.groups] == [100, 100, *[None] * 5]


def test_latent_rows_are_whole_on_every_rank() -> None:
    layer = LLAMA_70B.layer(0)
    latent = Latent(query_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    attention = LatentAttention(heads=Heads(64, 64, 192), latent=latent)
    facts = replace(LLAMA_70B, layers=(replace(layer, attention=attention),) * 80)

    def one_group(size_bytes: int) -> KvLayout:
        return KvLayout((CacheGroup(tuple(range(80))),), (size_bytes,) * 80)

    for ranks in (1, 2, 8):
        assert kv_layout(facts, KvElement(2), ranks) == one_group(576 * 2)
        assert kv_layout(facts, KV_ELEMENTS["fp8"], ranks) == one_group(512 + 4 + 64 * 2)
    (term,) = kv_terms(facts, KvElement(2), 8)
    assert (term.cache, term.divided, term.token_bytes) == (CacheKind.LATENT, False, 1152)


def test_activations_of_experts_count_every_expert_of_a_token() -> None:
    layer = LLAMA_70B.layer(0)
    experts = Experts(count=8, per_token=2, intermediate_size=28672, shared_intermediate_size=100)
    facts = replace(LLAMA_70B, layers=(replace(layer, mlp=MlpFacts(experts=experts)),) * 80)
    widest = 3 * 8192 + 2 * (3 * 28672 + 8192) + 3 * 100
    assert peak(facts) == 100 * widest * 2 + 10 * 128256 * 12
    drafting = peak(facts, drafts=3)
    assert drafting == 100 * widest * 2 + 40 * 128256 * 12


def fp8_experts(width: int) -> ModelFacts:
    layer = LLAMA_70B.layer(0)
    experts = Experts(count=12, per_token=2, intermediate_size=width)
    scheme = QuantizationScheme(method="fp8", default=replace(ONLINE["fp8"], method="fp8"))
    layers = (replace(layer, mlp=MlpFacts(experts=experts)),) * 80
    return replace(LLAMA_70B, layers=layers).stored_as(scheme)


def test_a_rank_must_hold_whole_scales_or_whole_experts() -> None:
    facts = fp8_experts(768)  # as Qwen3-30B-A3B-FP8: a fourth is 192
    assert valid_tensor_parallel_sizes(facts) == (1, 2)
    (problem,) = tensor_parallel_problems(facts, 4)
    assert "is 192 wide, which is no multiple of the quantisation's 128" in problem
    assert valid_tensor_parallel_sizes(facts, expert_parallel=True) == (1, 2, 4)
    assert tensor_parallel_problems(facts, 8, expert_parallel=True) == (
        "number of experts 12 is not divisible by 8",
    )


@pytest.mark.parametrize(
    ("quantization", "width", "sizes"),
    [
        # As gpt-oss: 2,880 inputs are 90 groups of 32, a fourth is 22 and a half.
        ({"quant_method": "mxfp4"}, 2880, (1, 2)),
        # Words of eight elements, though scales are an output's.
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 28672 + 32, (1, 2, 4)),
    ],
    ids=["groups", "words"],
)
def test_a_rank_must_hold_whole_groups_and_words(
    quantization: dict[str, Any], width: int, sizes: tuple[int, ...]
) -> None:
    layer = replace(LLAMA_70B.layer(0), mlp=MlpFacts(intermediate_size=width))
    read = read_quantization({"quantization_config": quantization})
    assert read is not None
    facts = replace(LLAMA_70B, layers=(layer,) * 80).stored_as(read)
    assert valid_tensor_parallel_sizes(facts) == sizes
