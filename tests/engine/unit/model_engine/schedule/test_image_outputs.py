"""Rows of images' outputs: never two images' at once, and evicted only while no row needs them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from atom.model_engine.schedule.images.image_outputs import ImageOutputs

ROWS = 40


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_calls_keeps_the_rows_of_images_apart(seed: int) -> None:
    draw = random.Random(seed)
    outputs, users, sizes = ImageOutputs(ROWS), Counter[bytes](), dict[bytes, int]()
    for _ in range(400):
        digest = bytes([draw.randrange(12)])
        kept = outputs.find(digest)
        if kept is None:
            assert not users[digest], "outputs that a row needs are kept"
            sizes[digest] = draw.randint(1, 15)
            held = sum(sizes[each] for each, count in users.items() if count)
            kept = outputs.reserve(digest, sizes[digest])
            assert (kept is not None) == (held + sizes[digest] <= ROWS)
        if kept is not None and draw.random() < 0.5:
            outputs.hold(digest)
            users[digest] += 1
        for each in [each for each, count in users.items() if count and draw.random() < 0.4]:
            outputs.release(each)
            users[each] -= 1
        found = [outputs.find(bytes([each])) for each in range(12)]
        taken = [row for rows in found if rows is not None for row in rows.tolist()]
        assert len(taken) == len(set(taken)) <= ROWS
        assert set(taken) <= set(range(ROWS))
    outputs.forget_all()
    assert outputs.reserve(b"all", ROWS) is not None


def test_the_longest_unused_image_is_evicted_first() -> None:
    outputs = ImageOutputs(3)
    for digest in (b"a", b"b", b"c"):
        outputs.reserve(digest, 1)
        outputs.hold(digest)
    for digest in (b"b", b"a", b"c"):
        outputs.release(digest)
    assert outputs.reserve(b"d", 1) is not None
    assert [outputs.find(each) is not None for each in (b"a", b"b", b"c")] == [True, False, True]
