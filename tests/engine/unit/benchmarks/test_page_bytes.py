"""Pages of two ranks are those of one, to the byte; a page that differs is told by its place."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.engines import page_bytes


@pytest.mark.parametrize("seed", range(10))
def test_a_changed_byte_is_told_by_its_place(seed: int) -> None:
    dice = random.Random(seed)
    shapes = [
        (dice.choice((1, 4, 16)), dice.choice((1, 2, 8)), dice.choice((1, 4, 32)))
        for _ in range(dice.randrange(1, 5))
    ]
    described = "0,1:" + ",".join("x".join(map(str, shape)) for shape in shapes)
    size = sum(pieces * heads * width for pieces, heads, width in shapes)
    page = bytearray(dice.randbytes(size))
    other, expected, offset = bytearray(page), [], 0
    for number, (pieces, heads, width) in enumerate(shapes):
        if dice.random() < 0.7:
            piece, head = dice.randrange(pieces), dice.randrange(heads)
            other[offset + (piece * heads + head) * width + dice.randrange(width)] ^= 1
            expected.append((number, piece, head))
        offset += pieces * heads * width
    assert page_bytes.places(described, bytes(page), bytes(other)) == expected


@pytest.mark.whole
@pytest.mark.parametrize("chunk", [48, 256])
def test_two_ranks_fill_pages_as_one_does(chunk: int, capsys: pytest.CaptureFixture[str]) -> None:
    """In chunks, together and alone, and read while steps of others run."""
    sizes = ["--prompts", "6", "--tokens", "40", "300", "--num-kv-blocks", "400", "--rounds", "1"]
    where = ["--shape", "tiny", "--device", "cpu", "--chunk", str(chunk)]
    assert page_bytes.main([*where, *sizes]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["differ"] for each in told] == [0] * 5
    assert all(each["pages"] > 40 for each in told)
