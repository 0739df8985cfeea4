"""`make lint` refuses docstrings that cannot be read alone, by file and line."""

from __future__ import annotations

import pytest

from tools.check_docstrings import TOLERATED, fragment_share, unclear


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


@pytest.mark.parametrize(
    "docstring",
    [
        "Of those that run.",
        "Until it has ended.",
        "What a step costs.",
        "None, where nothing runs.",
        "x [T, H] → [T].",
        "name: of the column.",
        "0 when all is well.",
        "[T] the row of each token.",
    ],
)
def test_a_fragment_is_refused_of_a_function_and_of_a_class(docstring: str) -> None:
    for head in ("def read() -> None:", "class Read:", "async def read() -> None:"):
        source = f'{head}\n    """{docstring}"""\n'
        (fault,) = unclear("engine/a.py", source)
        assert fault.startswith(f'engine/a.py:2: docstring begins with "{docstring.split()[0]}"')
        assert fragment_share([source]) == (1, 1)
        assert unclear(f"{TOLERATED[0]}a.py", source) == []


@pytest.mark.parametrize(
    "docstring",
    [
        "Read a file.",
        "A file's rows.",
        "`path` is read once.",
        "Raises `ValueError`.",
        "KV blocks.",
    ],
)
def test_what_has_a_verb_or_a_subject_is_no_fragment(docstring: str) -> None:
    assert unclear("engine/a.py", f'def read() -> None:\n    """{docstring}"""\n') == []


def test_a_constructor_may_begin_with_its_parameters() -> None:
    source = '''class Table:
    """Rows by slot."""

    def __init__(self, rows: int) -> None:
        """rows: at most so many."""
'''
    assert unclear("engine/a.py", source) == []
    assert fragment_share([source]) == (0, 2)
