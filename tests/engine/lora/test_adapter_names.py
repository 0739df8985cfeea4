"""Names of adapters are shown, and are labels of metrics: what misleads is kept out of them."""

from __future__ import annotations

import pytest

from atom.lora_config import check_lora_name

GOOD = ("sql", "org/name", "a.b-c_d", "über", "v1:2", "user@team", "x" * 256, "a/b/c", "naïve")
BAD = (
    "", "a b", "a,b", "a\nb", "a\x00", "\u202eevil", "a\u200b", "<script>", 'a"b', "a'b", "../x",
    "a/../b", "/a", "a/", "a//b", ".hidden", "a/.b", "x" * 257, "a\\b", "a;b", "a{b}",
)  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_names_that_may_be_shown_are_taken(name: str) -> None:
    assert check_lora_name(name) is None


@pytest.mark.parametrize("name", BAD)
def test_names_that_mislead_are_refused_with_the_rule(name: str) -> None:
    assert "org/name" in str(check_lora_name(name))
