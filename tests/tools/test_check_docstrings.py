"""`make lint` refuses docstrings that cannot be read alone, by file and line."""

from __future__ import annotations

import pytest

from tools.check_docstrings import unclear


def test_a_docstring_that_leans_on_its_neighbour_is_refused() -> None:
    source = 'def text() -> str:\n    """The same as text."""\n    return ""\n'
    (fault,) = unclear("engine/a.py", source)
    assert fault.startswith('engine/a.py:2: docstring begins with "The same"; ')


def test_every_nameless_word_is_found_on_its_own_line() -> None:
    source = '''"""Keeps what nobody reads.

Owned by Whoever calls it.
"""

class Lease:
    async def take(self) -> None:
        """Take it; False when
        somebody's is newer."""
'''
    assert [fault.split(";")[0] for fault in unclear("a.py", source)] == [
        'a.py:1: docstring says "nobody"',
        'a.py:3: docstring says "Whoever"',
        'a.py:9: docstring says "somebody"',
    ]


@pytest.mark.parametrize(
    "docstring",
    [
        "Draw tokens; the same for the same seed.",
        "Read a file.\n\n    The same file serves twice.",
        "Run as the user `nobody`, or `what\n    whoever` says.",
    ],
)
def test_words_with_a_right_place_are_let_through(docstring: str) -> None:
    assert unclear("a.py", f'def read() -> None:\n    """{docstring}"""\n') == []


def test_what_is_no_docstring_is_not_looked_at() -> None:
    source = 'def ask() -> str:\n    # nobody answers\n    return "The same somebody"\n'
    assert unclear("a.py", source) == []
