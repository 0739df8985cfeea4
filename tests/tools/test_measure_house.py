"""The house is measured as its tool says, and a chat request gains no storeys."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import measure_house
from tools.measure_house import CONCEPTS, Figure, guesses

ROOT = Path(__file__).resolve().parents[2]
CEILING = 55
FILES = {
    "a/router.py": "",
    "b/router_bias.py": "",
    "c/scheduler.py": "def _preempt_one(): ...\n",
    "d/other.py": "preempt preempt preempt",
}


@pytest.mark.parametrize(
    ("words", "target", "expected"),
    [
        ("router", "a/router.py", 1),
        ("router", "b/router_bias.py", 2),
        ("router bias", "b/router_bias.py", 1),
        ("preempt", "c/scheduler.py", 2),  # after a search of names that found nothing
        ("preempt", "d/other.py", 3),
    ],
)
def test_guesses_are_counted_as_files_are_opened(words: str, target: str, expected: int) -> None:
    assert guesses(words, target, FILES) == expected


def test_every_concept_is_where_the_table_says() -> None:
    assert {target for _, target in CONCEPTS.values()} <= set(measure_house.sources())


def test_a_figure_over_its_limit_says_so() -> None:
    assert Figure("rows", 36, 35).is_over
    assert "over" in str(Figure("rows", 36, 35))
    assert not Figure("rows", 35, 35).is_over
    assert not Figure("rows", 99, None).is_over


def test_a_chat_request_gains_no_storeys() -> None:
    """What only passes a request on adds to what a reader of its path opens."""
    command = [sys.executable, "-m", "tools.request_hops"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    told = re.search(r"hops of a chat request: (\d+) ", done.stdout)
    assert told is not None, done.stdout + done.stderr
    assert int(told[1]) <= CEILING
