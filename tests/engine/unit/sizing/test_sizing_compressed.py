"""Layers with a window beside entries, as sizes: by hand, and packed without overlap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atom.model_engine.runner import kv_cache
from atom.model_ops.attention import CachedAttention, CacheLayout
from atom.model_ops.attention.cache_layout import BlockTensor
from atom.sizing import KV_ELEMENTS, CacheKind, ModelFacts, kv_layout, kv_terms
from atom.sizing.cache_groups import MAX_PACKED_GROUPS, CachedLayer, pack_layers
from atom.sizing.drafting import eagle3_problems
from atom.sizing.mask_rule import sliding_window
from tests.support.models.published_deepseek_v4 import FLASH

BF16 = KV_ELEMENTS["bf16"]


def test_what_is_kept_of_a_token_by_hand() -> None:
    terms = kv_terms(ModelFacts.from_hf_config(FLASH), BF16, block_size=128)
    found = [(term.layers, term.cache, term.token_bytes, term.divided) for term in terms]
    assert found == [
        (2, CacheKind.WINDOW, 512 * 2, False),
        (21, CacheKind.ENTRIES, (512 + 128) * 2 // 4, False),
        # a key; for entries and for the indexer's what is added to two of them, and its share
        (21, CacheKind.WINDOW, (512 + 4 * (512 + 128)) * 2, False),
        (20, CacheKind.ENTRIES, 512 * 2 // 128, False),
        (20, CacheKind.WINDOW, (512 + 2 * 512) * 2, False),
    ]


@pytest.mark.parametrize(
    ("block_size", "heavy"), [(128, 512 * 2 // 128), (16, 512 * 2 // 16), (1, 512 * 2)]
)
def test_a_block_has_room_for_the_entries_that_end_in_it(block_size: int, heavy: int) -> None:
    facts = ModelFacts.from_hf_config(FLASH)
    sparse = (512 + 128) * 2 // min(4, block_size)
    layout = kv_layout(facts, BF16, block_size=block_size)
    needed = 21 * sparse + 20 * heavy
    assert needed <= layout.growing_bytes_per_token <= 1.05 * needed


def test_blocks_are_no_larger_than_entries_are_and_ranks_hold_the_same() -> None:
    facts = ModelFacts.from_hf_config(FLASH)
    layout = kv_layout(facts, BF16, block_size=128)
    entries, *windows = layout.groups
    assert (entries.window, len(entries.layers), len(windows)) == (None, 41, 31)
    assert {group.window for group in windows} == {128}
    # A million tokens take 7 GiB of entries; each group of a window two blocks at most.
    assert layout.blocks_of_sequence(1_048_576, 128) == 8192 + 31 * 2
    assert layout.bytes_per_token == 7168
    assert kv_layout(facts, BF16, 8, block_size=128) == layout


def test_a_window_reaches_back_as_far_as_the_next_entry_of_any_layer() -> None:
    for window, ratios, reach in ((24, [0, 4, 128], 128), (24, [0, 4, 4], 24), (5, [0, 4, 4], 8)):
        config = {
            **FLASH, "sliding_window": window, "num_hidden_layers": 3, "compress_ratios": ratios,
        }  # fmt: skip
        layout = kv_layout(ModelFacts.from_hf_config(config), BF16)
        assert {group.window for group in layout.groups} == {None, reach}


def test_a_model_of_windows_alone_has_no_growing_group() -> None:
    config = {**FLASH, "num_hidden_layers": 2, "compress_ratios": [0, 0]}
    layout = kv_layout(ModelFacts.from_hf_config(config), BF16)
    assert [group.window for group in layout.groups] == [128]
    assert layout.growing_bytes_per_token == 0


def test_a_draft_model_sees_one_stream() -> None:
    draft = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4096, "num_hidden_layers": 1,
        "num_attention_heads": 32, "intermediate_size": 4096, "vocab_size": 129_280,
        "draft_vocab_size": 32_000, "max_position_embeddings": 2048,
    }  # fmt: skip
    facts = ModelFacts.from_hf_config(FLASH)
    found = list(eagle3_problems(facts, ModelFacts.from_hf_config(draft)))
    assert any("several residual streams" in problem for problem in found)


class Kept(CachedAttention):
    """A layer that keeps so many bytes of a block."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        super().__init__(None)  # type: ignore[arg-type]

    def cache_layout(self, block_size: int, dtype: torch.dtype) -> CacheLayout:
        first = self._block_bytes // 3
        sizes = (first, self._block_bytes - first)
        return CacheLayout(tuple(BlockTensor((size,), torch.uint8) for size in sizes if size))

    def hold(self, tensors: Any) -> None:
        self.tensors = tensors

    def cached_tensors(self) -> Any:
        return self.tensors

    def release(self) -> None:
        self.tensors = ()


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@given(
    growing=st.lists(st.integers(1, 9), max_size=20), windows=SIZES, longest=st.integers(1, 9999)
)
def test_no_layer_overlaps_another_of_its_block(
    growing: list[int], windows: list[int], longest: int
) -> None:
    own = [CachedLayer(number, size) for number, size in enumerate([*growing, *windows])]
    split = len(growing)
    found = pack_layers(own[:split], own[split:], sliding_window(24), longest)
    assert len(found.groups) <= MAX_PACKED_GROUPS
    assert sorted(at for group in found.groups for at in group.layers) == list(range(len(own)))
    layers = [Kept(16 * each.token_bytes) for each in own]
    place = kv_cache.Place(torch.uint8, torch.device("cpu"))
    (pool,) = kv_cache.allocate(layers, found.groups, 2, 16, place)
    assert pool.nbytes == 2 * 16 * sum(found.token_bytes)
    for group in found.groups:
        pool.zero_()
        for at in group.layers:
            for tensor in layers[at].tensors:
                assert not tensor.any(), "another layer was there"
                tensor.fill_(1)
