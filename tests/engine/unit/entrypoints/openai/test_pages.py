"""Pages of lists, by any number and id that a client may send."""

from __future__ import annotations

import pytest

from atom.entrypoints.openai.pages import page_of
from atom.errors import RequestError

ITEMS = [f"item-{number}" for number in range(5)]
MOST = 3


def page(**query: str) -> tuple[list[str], bool]:
    found = page_of(ITEMS, str, query, (2, MOST))
    assert (found.first_id, found.last_id) == (
        (found.items[0], found.items[-1]) if found.items else (None, None)
    )
    return list(found.items), found.has_more


def test_pages_follow_each_other_until_the_last() -> None:
    assert page() == (ITEMS[:2], True)
    assert page(limit="3", after=ITEMS[0]) == (ITEMS[1:4], True)
    assert page(limit="03", after=ITEMS[1]) == (ITEMS[2:], False)
    assert page(after=ITEMS[-1]) == ([], False)


@pytest.mark.parametrize(
    "limit",
    ["", "0", "-1", "4", "1.5", "x", "²", "٣", "000000001999999", "1" * 5000],
)
def test_a_limit_outside_its_bounds_is_refused(limit: str) -> None:
    with pytest.raises(RequestError, match=f"limit: must be 1 to {MOST}"):
        page(limit=limit)


def test_an_id_that_is_not_in_the_list_is_refused() -> None:
    with pytest.raises(RequestError, match="no item of this list"):
        page(after="item-9")
