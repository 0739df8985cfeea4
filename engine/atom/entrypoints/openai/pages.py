"""page_of: one page of a list, by the query parameters limit and after of OpenAI's API. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from atom.errors import RequestError

_MOST_DIGITS = 9
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Hold the items of a page, the ids of its ends, and whether more items follow."""

    items: Sequence[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(
    items: Sequence[Item],
    id_of: Callable[[Item], str],
    query: Mapping[str, str],
    limits: tuple[int, int],
) -> Page[Item]:
    """Return a page of items. limits: items of a page unless the query states another number, and
    the most. Raises `RequestError`."""
    usual, most = limits
    limit = query.get("limit", str(usual))
    is_count = limit.isascii() and limit.isdecimal() and len(limit) <= _MOST_DIGITS
    if not is_count or not 1 <= int(limit) <= most:
        raise RequestError(f"limit: must be 1 to {most}", param="limit")
    after = query.get("after")
    if after:
        ids = [id_of(item) for item in items]
        if after not in ids:
            raise RequestError("after: no item of this list has that id", param="after")
        items = items[ids.index(after) + 1 :]
    shown = items[: int(limit)]
    first, last = (id_of(shown[0]), id_of(shown[-1])) if shown else (None, None)
    return Page(shown, first, last, has_more=len(shown) < len(items))
