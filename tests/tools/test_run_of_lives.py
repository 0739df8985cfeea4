"""A run of generated lives is a plain command: by seeds, in processes, without a test runner."""

from __future__ import annotations

import io
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.operator_life import lives
from tests.support.operator_life.__main__ import as_arguments, in_turn, main, played, tell
from tests.support.operator_life.lives import KINDS, broken_seed

_WITHOUT_A_TEST_RUNNER = """
import sys
sys.modules |= {"pytest": None, "hypothesis": None}  # no import finds them
from tests.support.operator_life.__main__ import main
if __name__ == "__main__":
    asked = ["--kind", "wider", "--seeds", "0:1", "plain=0:1", "--processes", "2"]
    sys.exit(main([*asked, "--json", "lines"]))
"""


def test_lives_are_played_in_processes_without_a_test_runner(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", _WITHOUT_A_TEST_RUNNER],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(str(root / part) for part in ("engine", "operator", "."))},
    )
    told = "2 of 2 lives, 0 broken: 1 plain (0), 1 wider (0)\n"
    assert (run.returncode, run.stdout) == (0, told), run.stderr
    counts = {"played": 2, "asked": 2, "broken": 0, "left": ""}
    assert json.loads((tmp_path / "lines").read_text()) == counts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [AssertionError("a promise\n  at 7 s"), KeyError("lost")])
def test_a_seed_that_breaks_is_told_with_its_shortest_story(
    kind: str, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(story: object) -> None:
        raise error

    monkeypatch.setattr(lives, "play", play)
    found = broken_seed(kind, 7)
    assert found is not None
    assert not found.story.happenings  # none of them is needed
    asked = [(kind, seed) for seed in (6, 7, 8)]
    lines = io.StringIO()
    assert tell(asked, [(life, found if life[1] == 7 else None) for life in asked], lines) == 1
    printed = capsys.readouterr().out
    cause = str(error.args[0]).partition("\n")[0]
    assert f"{kind} seed 7: " in printed
    last = printed.splitlines()[-2:]
    assert last[0].startswith(f"{kind} 7: ")
    assert last[0].endswith(cause) or "KeyError" in last[0]
    assert last[1] == f"3 of 3 lives, 1 broken: 3 {kind} (1)"
    told, counts = map(json.loads, lines.getvalue().splitlines())
    assert (told["kind"], told["seed"]) == (kind, 7)
    assert cause in told["cause"]
    assert counts["broken"] == 1


def test_nothing_broken_is_told_with_status_zero(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [("plain", seed) for seed in range(250)]
    assert tell(asked, [(life, None) for life in asked]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "100 of 250 lives, 0 broken",
        "200 of 250 lives, 0 broken",
        "250 of 250 lives, 0 broken: 250 plain (0)",
    ]


def test_kinds_come_in_turn_so_that_a_part_of_a_run_is_like_the_whole() -> None:
    asked = in_turn([("plain", range(10, 60)), ("pair", range(20)), ("plain", range(50, 70))])
    assert len(asked) == 80, "a seed of two ranges is played once"
    assert sorted(asked) == sorted({*asked})
    for part in range(10, 80, 10):
        pairs = sum(kind == "pair" for kind, _ in asked[:part])
        assert abs(pairs - part / 4) <= 2


def test_lives_that_are_left_by_the_time_limit_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [*(("plain", seed) for seed in range(5)), *(("pair", seed) for seed in (7, 9))]
    assert tell(asked, [(life, None) for life in asked[:2]]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "5 are left: --seeds pair=7:8 pair=9:10 plain=2:5",
        "2 of 7 lives, 0 broken: 2 plain (0), 0 pair (0)",
    ]
    assert as_arguments(()) == ""


def test_the_time_limit_ends_lives_that_run() -> None:
    """No life ends within no time, and no process outlives the run."""
    assert not list(played([("plain", 0), ("plain", 1)], 1, 0.0))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("seeds", ["5:5", "9:2", "many", "1:2:3", "tall=1:2", "plain="])
def test_a_range_without_seeds_is_an_error(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", seeds])
    assert seeds in capsys.readouterr().err
