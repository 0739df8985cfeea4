"""Find the words that a misspelt word was meant to be. Standard library only; pure."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable

_MOST = 4  # words that are as near as each other
_LIKE = 0.6


def nearest(word: str, known: Iterable[str], *, likeness: float = _LIKE) -> list[str]:
    """Return the known words with the fewest slips from `word`, in their order, at most four.

    A slip is a letter lost, added, replaced or swapped with its neighbour; up to one per three
    letters, and at most three, count as a misspelling. If no word is that near, return the one with
    the most in common, by difflib's ratio at least `likeness`, or none.
    """
    words = list(dict.fromkeys(known))
    most = min(3, max(1, len(word.strip("-")) // 3))
    letters = Counter(word)
    slips = {
        each: _slips(word, each, most) if _may_be_near(letters, each, most) else most + 1
        for each in words
    }
    least = min(slips.values(), default=most + 1)
    if least <= most:
        return [each for each in words if slips[each] == least][:_MOST]
    return difflib.get_close_matches(word, words, 1, likeness)


def _may_be_near(letters: Counter[str], word: str, most: int) -> bool:
    """Return whether a word may have at most `most` slips, by its letters alone: each slip changes
    two of them at most."""
    other = Counter(word)
    return (letters - other).total() + (other - letters).total() <= 2 * most


def _slips(one: str, other: str, most: int) -> int:
    """Count the slips between two words: the restricted Damerau-Levenshtein distance. Every number
    above `most` means too many."""
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for index, letter in enumerate(one, start=1):
        earlier, before = before, row
        row = [index]
        for place, wanted in enumerate(other, start=1):
            best = min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != wanted))
            swapped = index > 1 and place > 1
            if swapped and letter == other[place - 2] and one[index - 2] == wanted:
                best = min(best, earlier[place - 2] + 1)
            row.append(best)
    return row[-1]
