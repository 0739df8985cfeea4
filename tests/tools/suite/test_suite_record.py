"""A run leaves its record, and what files took is known to the next `make check`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.suite_record import RECORD_VARIABLE, RunRecord, add_seconds, read_seconds

ROOT = Path(__file__).parents[3]
TESTS = """
import pytest

def test_good():  # programs that tests start do not see the variable
    import os
    assert "SUITE_RECORD" not in os.environ

def test_bad(): assert False

def test_skipped(): pytest.skip("no fish")

@pytest.fixture
def broken(): raise OSError

def test_error(broken): ...

@pytest.mark.xfail(strict=False)
def test_expected(): assert False
"""


def test_failures_errors_and_skips_of_a_run_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (tmp_path / "test_c.py").write_text("import no_such_module\n")
    options = ["-p", "tests.support.suite_record", "-p", "no:cacheprovider", "-c", os.devnull]
    environment = os.environ | {RECORD_VARIABLE: str(tmp_path / "run.json")}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", *options,
         f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, check=False,
    )  # fmt: skip
    record = RunRecord.read(tmp_path / "run.json")
    assert sorted(record.failed) == ["test_a.py::test_bad", "test_a.py::test_error", "test_c.py"]
    assert ("test_a.py::test_skipped", "no fish") in record.skipped
    assert [test for test, _ in record.skipped] == ["test_b.py", "test_a.py::test_skipped"]
    assert set(record.seconds) == {"test_a.py"}


def test_seconds_are_those_of_the_run_with_the_most_tests(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "seconds.json"
    assert read_seconds(file) == {}
    for ran, seconds in ((3, 9.0), (1, 0.5), (3, 6.0)):
        add_seconds(file, RunRecord(seconds={"tests/a.py": seconds}, ran={"tests/a.py": ran}))
    add_seconds(file, RunRecord(seconds={"tests/b.py": 1.0}, ran={"tests/b.py": 1}))
    assert read_seconds(file) == {"tests/a.py": 6.0, "tests/b.py": 1.0}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 3}', "null"])
def test_a_file_that_a_killed_run_left_in_halves_is_no_obstacle(tmp_path: Path, text: str) -> None:
    file = tmp_path / "seconds.json"
    file.write_text(text)
    assert read_seconds(file) == {}
    add_seconds(file, RunRecord(seconds={"tests/a.py": 1.0}, ran={"tests/a.py": 1}))
    assert read_seconds(file) == {"tests/a.py": 1.0}


def test_records_of_several_runs_add_up() -> None:
    first = RunRecord({"a": 1.0}, {"a": 1}, ["a::b"], [("a::c", "none")])
    second = RunRecord({"a": 2.0, "d": 4.0}, {"a": 2, "d": 1}, [], [])
    both = RunRecord.merged([first, second])
    assert (both.seconds, both.ran) == ({"a": 3.0, "d": 4.0}, {"a": 3, "d": 1})
    assert (both.failed, both.skipped) == (["a::b"], [("a::c", "none")])
