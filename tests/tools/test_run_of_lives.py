"""A run of generated lives is a plain command: by seeds, in processes, without a test runner."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.operator_life import lives
from tests.support.operator_life.__main__ import main, tell
from tests.support.operator_life.lives import KINDS, broken_seed

_WITHOUT_A_TEST_RUNNER = """
import sys
sys.modules |= {"pytest": None, "hypothesis": None}  # no import finds them
from tests.support.operator_life.__main__ import main
if __name__ == "__main__":
    sys.exit(main(["--kind", "wider", "--seeds", "0:2", "--processes", "2"]))
"""


def test_lives_are_played_in_processes_without_a_test_runner() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _WITHOUT_A_TEST_RUNNER],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": "engine:operator:."},
    )
    assert (run.returncode, run.stdout) == (0, "2 wider lives, 0 broken\n"), run.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [AssertionError("a promise"), KeyError("lost")])
def test_a_seed_that_breaks_is_told_with_its_shortest_story(
    kind: str, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(story: object) -> None:
        raise error

    monkeypatch.setattr(lives, "play", play)
    found = broken_seed(kind, 7)
    assert found is not None
    assert not found.story.happenings  # none of them is needed
    assert tell(kind, 3, [None, found, None]) == 1
    printed = capsys.readouterr().out
    assert f"{kind} seed 7: " in printed
    assert str(error.args[0]) in printed
    assert printed.endswith(f"3 {kind} lives, 1 broken: 7\n")


def test_nothing_broken_is_told_with_status_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell("plain", 250, [None] * 250) == 0
    assert capsys.readouterr().out.splitlines() == [
        "100 of 250 lives, 0 broken",
        "200 of 250 lives, 0 broken",
        "250 plain lives, 0 broken",
    ]


@pytest.mark.parametrize("seeds", ["5:5", "9:2", "many", "1:2:3"])
def test_a_range_without_seeds_is_an_error(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", seeds])
    assert seeds in capsys.readouterr().err
