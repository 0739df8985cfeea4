"""`make lint` refuses files and folders that a newcomer cannot take in."""

from pathlib import Path

import pytest

from tools import check_file_size
from tools.check_file_size import FOLDER_LIMIT, LARGE_LIMIT, LIMIT, main, too_crowded, too_long


def modules(folder: str, count: int) -> list[str]:
    return [f"{folder}/module_{number}.py" for number in range(count)]


def test_a_folder_of_more_modules_than_a_newcomer_reads_is_refused_with_its_remedy() -> None:
    (problem,) = too_crowded([*modules("tools", FOLDER_LIMIT + 1), "tools/demo_model/qwen3.py"])
    assert problem.startswith("tools: 26 modules, at most 25;")
    assert "package below it" in problem


def test_what_stands_in_a_subpackage_does_not_count_above_it() -> None:
    subpackage = modules("devcluster/node", FOLDER_LIMIT)
    assert too_crowded([*modules("devcluster", FOLDER_LIMIT), *subpackage]) == []


def test_folders_of_tests_may_be_no_larger() -> None:
    assert len(too_crowded(modules("tests/operator/unit", FOLDER_LIMIT + 1))) == 1


def test_a_file_over_its_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_file_size, "ROOT", tmp_path)
    kernels = "engine/atom/model_ops/backends/kernels.py"
    (tmp_path / kernels).parent.mkdir(parents=True)
    (tmp_path / kernels).write_text("pass\n" * LARGE_LIMIT)
    (tmp_path / "long.py").write_text("pass\n" * (LIMIT + 1))
    assert too_long([kernels, "long.py"]) == [
        "long.py: 501 lines, at most 500; split it by concept"
    ]


def test_lint_fails_for_a_crowded_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = check_file_size.python_files()
    assert main() == 0, "this tree is fine"
    crowd = [*files, *modules("benchmarks", FOLDER_LIMIT)]
    monkeypatch.setattr(check_file_size, "python_files", lambda: crowd)
    monkeypatch.setattr(check_file_size, "too_long", lambda paths: [])
    capsys.readouterr()
    assert main() == 1
    assert "benchmarks: " in capsys.readouterr().out
