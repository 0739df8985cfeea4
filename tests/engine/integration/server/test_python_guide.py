"""The guide to the engine in Python does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server.server_process import START_SECONDS, command_environment

REPOSITORY = Path(__file__).parents[4]
GUIDE = (REPOSITORY / "docs/guides/python-api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_the_guide_has_an_example_of_each_engine() -> None:
    assert ["AsyncLLMEngine" in example for example in EXAMPLES] == [False, True]


# The first one imports everything anew, the other one in a copy that has it.
ANEW, COPIED = ("-c",), ("-m", "tests.support.preloaded.script")


@pytest.mark.parametrize(
    ("example", "by"),
    [
        pytest.param(EXAMPLES[0], ANEW, id="at-once"),
        pytest.param(EXAMPLES[1], COPIED, id="in-an-event-loop"),
    ],
)
def test_an_example_runs_as_it_is_written(example: str, by: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, *by, example],
        cwd=REPOSITORY,
        env=command_environment(),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2, "one line per answer, or the answers and the state"
