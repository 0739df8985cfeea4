"""Sizes as people read them."""

from __future__ import annotations

import pytest

from atom_operator.sizes import size_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1000 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1000 * 2**20, "1000 MiB"),
        (1023.4 * 2**20, "1023 MiB"),
        (1023.6 * 2**20, "1 GiB"),
        (7.73 * 2**30, "7.73 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_a_size_has_three_digits_and_never_an_exponent(size_bytes: float, text: str) -> None:
    assert size_text(size_bytes) == text
