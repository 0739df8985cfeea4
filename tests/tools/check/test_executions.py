"""The index has the files that the tests of a run execute, and it corrects the import graph."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.check.executions import add_executions, read_executions, steps_by_execution

ROOT = Path(__file__).parents[3]
WAITS = "tests/tools/suite/test_waits.py"
NAMES = st.sampled_from([f"tests/test_{letter}.py" for letter in "abcdef"])
FILES = st.sampled_from([f"tools/{letter}.py" for letter in "xyz"])


def run(index: Path, *arguments: str) -> None:
    plugin = ["-p", "tests.support.executed_files", "--executed", str(index)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *plugin, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_run_records_the_files_that_it_calls_and_not_those_that_it_imports(
    tmp_path: Path,
) -> None:
    index = tmp_path / "index.json"
    run(index, WAITS)
    first = read_executions(index)
    assert set(first) == {WAITS}
    assert "tools/suite/waits.py" in first[WAITS]
    assert "tools/suite/summary.py" not in first[WAITS]
    # Another run adds to the index, from bytecode that the first run wrote.
    run(index, "tests/tools/suite/test_summary.py")
    both = read_executions(index)
    assert both[WAITS] == first[WAITS]
    assert "tools/suite/summary.py" in both["tests/tools/suite/test_summary.py"]
    assert "tools/suite/waits.py" not in both["tests/tools/suite/test_summary.py"]


def test_what_a_marked_function_is_and_gives_stays_the_same(tmp_path: Path) -> None:
    """Docstrings, signatures, lines of errors, generators, coroutines and closures."""
    test = tmp_path / "test_marked.py"
    test.write_text(
        "import inspect\n"
        "from tools.check import selection\n"
        "def test_it():\n"
        "    assert selection.__executed__ == [False]\n"
        "    assert selection.select.__doc__.startswith('Choose the nearest')\n"
        "    assert selection.select({'a.py': {'t.py': 1}}, {}, 9.0).chosen == ('t.py',)\n"
        "    assert selection.__executed__ == [True]\n"
        "    assert 'def select(' in inspect.getsource(selection.select)\n"
    )
    run(tmp_path / "index.json", str(test))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": [], "tests": {"a": [3]}}', "null"])
def test_a_damaged_index_counts_as_empty_and_is_replaced(tmp_path: Path, text: str) -> None:
    index = tmp_path / "index.json"
    index.write_text(text)
    assert read_executions(index) == {}
    add_executions(index, {"tests/test_a.py": {"tools/x.py"}})
    assert read_executions(index) == {"tests/test_a.py": {"tools/x.py"}}


@given(
    st.lists(st.dictionaries(NAMES, st.sets(FILES)), max_size=4),
)
def test_the_last_run_of_a_test_file_counts(
    tmp_path_factory: pytest.TempPathFactory, runs: list[dict[str, set[str]]]
) -> None:
    index = tmp_path_factory.mktemp("index") / "index.json"
    expected: dict[str, set[str]] = {}
    for found in runs:
        add_executions(index, found)
        expected.update(found)
    assert read_executions(index) == expected


@given(
    steps=st.dictionaries(NAMES, st.integers(0, 9)),
    executions=st.dictionaries(NAMES, st.sets(FILES)),
)
def test_recorded_tests_that_did_not_execute_a_file_are_farther(
    steps: Mapping[str, int], executions: Mapping[str, set[str]]
) -> None:
    found = steps_by_execution("tools/x.py", steps, executions)
    executing = {test for test, files in executions.items() if "tools/x.py" in files}
    assert set(found) == set(steps) | executing, "no test is lost"
    farther = {test for test in steps if found[test] > steps[test]}
    assert farther == (set(steps) & set(executions) - executing if executing else set())
    assert all(found[test] == steps[test] for test in set(steps) - farther)


def test_a_test_that_only_the_index_knows_comes_before_one_that_only_imports() -> None:
    steps = {"tests/test_imports.py": 1, "tests/test_calls.py": 1, "tests/test_new.py": 2}
    executions = {
        "tests/test_imports.py": {"tools/other.py"},
        "tests/test_calls.py": {"tools/x.py"},
        "tests/test_by_registry.py": {"tools/x.py", "tools/other.py"},
    }
    found = steps_by_execution("tools/x.py", steps, executions)
    assert sorted(found, key=lambda test: found[test]) == [
        "tests/test_calls.py",
        "tests/test_new.py",
        "tests/test_by_registry.py",
        "tests/test_imports.py",
    ]
