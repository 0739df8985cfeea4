"""MarkSpellings: all token sequences that spell a mark, so that token ids suffice to follow the
text.

    <think>    as [<think>], as [<, think, >], and as [<th, ink, >:], whose last token goes on

The engine core knows only ids; the HTTP process, which has the tokenizer, computes the spellings
once. A value that crosses the wire as part of `ThinkingBudget`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class MarkSpellings(msgspec.Struct, frozen=True):
    """Follow a mark by its bytes. length: of the mark. begins: by token, the length of the mark's
    beginning with which a text ends after that token, whatever came before; goes_on: by token, the
    same by the length before the token. blanks: tokens that are only blanks."""

    length: int
    begins: dict[int, int]
    goes_on: dict[int, dict[int, int]]
    blanks: set[int]

    def matched(self, before: int, token_id: int) -> int:
        """Return the length of the mark's beginning with which a text ends after one more token."""
        found = self.goes_on.get(token_id)
        if found is not None and before in found:
            return found[before]
        return self.begins.get(token_id, 0)


def spellings_of(
    mark: bytes, texts: Sequence[bytes], whole: Iterable[int], *, at_start: bool
) -> MarkSpellings:
    """Find a mark's spellings in the texts of a vocabulary. whole: tokens that are the mark,
    whatever their text. at_start: only blanks may precede the mark."""
    beginnings = tuple(mark[:end] for end in range(1, len(mark) + 1))
    begins: dict[int, int] = {}
    goes_on: dict[int, dict[int, int]] = {}
    blanks: set[int] = set()
    signs = frozenset(mark)
    for token_id, text in enumerate(texts):
        if not text:
            continue
        if text.isspace():
            blanks.add(token_id)
        place = text.find(mark)
        if place >= 0 or text.endswith(beginnings):
            ends = len(mark) if place >= 0 else max(
                len(part) for part in beginnings if text.endswith(part)
            )  # fmt: skip
            before = text[:place] if place >= 0 else text[: len(text) - ends]
            if not (at_start and before.strip()):
                begins[token_id] = ends
        if text[0] in signs:
            found = {
                state: min(len(mark), state + len(text))
                for state in range(1, len(mark))
                if text.startswith(mark[state:]) or mark[state:].startswith(text)
            }
            if found:
                goes_on[token_id] = found
    begins |= dict.fromkeys(whole, len(mark))
    return MarkSpellings(len(mark), begins, goes_on, blanks)
