"""The CPU's attention pads little, and what a step shares between layers is right for each."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from atom.model_ops.backends.torch_cpu.attention import length_groups, paged_attention
from atom.model_ops.backends.torch_ref.attention import paged_attention as reference
from atom.model_ops.values import LayerCache
from tests.engine.ops.inputs import assert_rows_agree, paged_case


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=300))
def test_every_row_is_in_one_group_and_each_cut_pays(lengths) -> None:
    descending = np.sort(np.array(lengths, dtype=np.int64))[::-1]
    groups = length_groups(descending)
    assert np.concatenate(groups).tolist() == list(range(len(lengths)))

    def computed(parts: list[np.ndarray]) -> int:
        return sum(int(descending[rows].max()) * len(rows) for rows in parts)

    whole = [np.arange(len(lengths))]
    assert computed(whole) - computed(groups) >= 600 * (len(groups) - 1)


def test_rows_of_one_length_are_one_group() -> None:
    assert len(length_groups(np.full(256, 4000))) == 1


def test_one_long_row_does_not_make_all_others_as_long() -> None:
    groups = length_groups(np.array([4000] + [10] * 63))
    assert [len(rows) for rows in groups] == [1, 63]


def test_layers_of_one_step_share_the_rows_and_not_the_caches() -> None:
    rows = [(700, 1), (3, 1), (40, 1), (650, 1), (30, 12)]
    case = paged_case(rows, device=torch.device("cpu"), dtype=torch.float32)
    clean = case.clean_cache(torch.float32)
    for layer in range(3):
        cache = LayerCache(*(tensor.roll(layer, dims=2) for tensor in (clean.k, clean.v)))
        args = (case.q, case.shape, cache, case.step)
        assert_rows_agree(paged_attention(*args), reference(*args), torch.float32)
