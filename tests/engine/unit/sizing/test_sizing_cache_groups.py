"""Which layers share blocks, and what padding that costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.sizing import CacheGroup
from atom.sizing.cache_groups import MAX_GROUPS, CachedLayer, Grouping, group_layers
from atom.sizing.mask_rule import MaskRule, sliding_window

LONGEST = 32_768


def grouped(windows: Sequence[int | None], sizes: Sequence[int] | int = 10) -> Grouping:
    kinds: dict[MaskRule, list[CachedLayer]] = {}
    for index, window in enumerate(windows):
        size = sizes if isinstance(sizes, int) else sizes[index]
        kinds.setdefault(sliding_window(window), []).append(CachedLayer(index, size))
    return group_layers(kinds, LONGEST)


def shape(grouping: Grouping) -> list[tuple[int | None, int]]:
    return [(group.window, len(group.layers)) for group in grouping.groups]


def test_layers_that_are_all_alike_are_one_group_in_their_order() -> None:
    for window in (None, 128):
        assert grouped([window] * 80).groups == (
            CacheGroup(tuple(range(80)), sliding_window(window)),
        )


def test_layers_that_alternate_are_two_groups() -> None:
    found = grouped([128, None] * 12)
    assert found.groups == (
        CacheGroup(tuple(range(0, 24, 2)), sliding_window(128)),
        CacheGroup(tuple(range(1, 24, 2))),
    )
    assert found.token_bytes == (10,) * 12


def test_few_layers_that_keep_everything_set_the_size_of_a_group() -> None:
    found = grouped([512 if (index + 1) % 6 else None for index in range(26)])
    assert shape(found) == [*[(512, 4)] * 4, *[(512, 3)] * 2, (None, 4)]
    assert sorted(layer for group in found.groups for layer in group.layers) == list(range(26))


def test_layers_of_unlike_bytes_in_one_group_each_take_their_own() -> None:
    assert grouped([None] * 3, [10, 30, 20]).token_bytes == (30, 20, 10)


def test_smaller_layers_share_a_position_with_each_other() -> None:
    found = grouped([None, 128, None, 128, None], [10, 20, 10, 20, 10])
    assert found.groups == (
        CacheGroup((0, 2, 4), layers_per_tensor=2),
        CacheGroup((1, 3), sliding_window(128)),
    )
    assert found.token_bytes == (20, 20)


def test_sizes_that_do_not_divide_each_other_meet_at_a_common_multiple() -> None:
    found = grouped([None, 128, None, 128], [10, 15, 10, 15])
    assert found.groups == (
        CacheGroup((0, 2), layers_per_tensor=3),
        CacheGroup((1, 3), sliding_window(128), layers_per_tensor=2),
    )
    assert found.token_bytes == (30,)


def test_more_kinds_than_groups_are_allowed_have_a_group_each() -> None:
    windows = [*range(1, MAX_GROUPS + 2), 1]
    assert len(grouped(windows).groups) == MAX_GROUPS + 1


@given(
    st.lists(
        st.tuples(st.sampled_from([None, None, 64, 4096]), st.sampled_from([8, 8, 24])),
        min_size=1,
        max_size=40,
    )
)
def test_every_layer_has_a_place_that_is_large_enough(layers: list[tuple[int | None, int]]) -> None:
    windows, sizes = [layer[0] for layer in layers], [layer[1] for layer in layers]
    found = grouped(windows, sizes)
    assert len(found.groups) <= MAX_GROUPS
    placed = [
        (layer, group, index // group.layers_per_tensor)
        for group in found.groups
        for index, layer in enumerate(group.layers)
    ]
    assert sorted(layer for layer, _, _ in placed) == list(range(len(layers)))
    for layer, group, position in placed:
        assert group.window == windows[layer]
        assert found.token_bytes[position] == sizes[layer] * group.layers_per_tensor
    if len(set(windows)) == 1:
        assert sum(found.token_bytes) == sum(sizes)


@pytest.mark.parametrize("windows", [[None] * 10 + [1024] * 52, [None] * 28 + [4096] * 8])
def test_no_other_size_of_group_takes_fewer_bytes(windows: list[int | None]) -> None:
    found = grouped(windows)
    numbers = [windows.count(window) for window in dict.fromkeys(windows)]
    kept = [LONGEST if window is None else window for window in dict.fromkeys(windows)]
    for size in range(1, len(windows) + 1):
        counts = [-(-number // size) for number in numbers]
        if sum(counts) <= MAX_GROUPS:
            taken = sum(count * each for count, each in zip(counts, kept, strict=True))
            assert found.sequence_bytes(LONGEST) <= taken * size * 10
