"""Tests are found by imports, by names in texts, and for other files by the names of files."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tools.check.import_graph import ImportGraph, module_of

FILES = {
    "engine/atom/__init__.py": "",
    "engine/atom/core.py": "",
    "engine/atom/server.py": "from atom import core\n",
    "engine/atom/registry.py": "MODELS = {'llama': 'atom.llama:Llama'}\n",
    "engine/atom/llama.py": "",
    "engine/atom/alone.py": "",
    "operator/atom_operator/__init__.py": "",
    "benchmarks/__init__.py": "",
    "devcluster/__init__.py": "",
    "tools/__init__.py": "",
    "tests/support/rig.py": "import atom.server\n",
    "tests/parts/conftest.py": "",
    "tests/parts/test_core.py": "def test_it():\n    import atom.core\n",
    "tests/parts/test_server.py": "from tests.support.rig import start\n",
    "tests/parts/test_process.py": "COMMAND = ['python', '-m', 'atom.server']\n",
    "tests/parts/test_models.py": "from atom.registry import MODELS\n",
    "tests/chart/test_chart.py": "VALUES = 'charts/small/values.yaml'\n",
    "tests/chart/test_folder.py": "CHART = ROOT / 'charts' / 'small'\n",
    "tests/live/test_cluster.py": "import atom.core\npytestmark = pytest.mark.cluster\n",
    "tests/live/test_both.py": "pytestmark = [\n    mark.asyncio,\n    pytest.mark.cluster,\n]\n",
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> ImportGraph:
    root = tmp_path_factory.mktemp("checkout")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return ImportGraph(root, root / ".cache")


def test_a_package_that_is_imported_already_is_read_from_the_checkout(graph: ImportGraph) -> None:
    assert importlib.import_module("atom").__name__ in sys.modules
    assert graph.distances("engine/atom/llama.py") == {"tests/parts/test_models.py": 3}
    assert "atom" in sys.modules


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (
            "engine/atom/core.py",
            {"parts/test_core": 1, "parts/test_server": 3, "parts/test_process": 3,
             "live/test_cluster": 1},
        ),
        ("engine/atom/server.py", {"parts/test_server": 2, "parts/test_process": 2}),
        ("engine/atom/llama.py", {"parts/test_models": 3}),
        ("engine/atom/alone.py", {}),
        ("tests/parts/test_core.py", {"parts/test_core": 0}),
        ("tests/support/rig.py", {"parts/test_server": 1}),
        (
            "tests/parts/conftest.py",
            {f"parts/test_{name}": 1 for name in ("core", "server", "process", "models")},
        ),
        ("charts/small/values.yaml", {"chart/test_chart": 1, "chart/test_folder": 2}),
        ("charts/small/templates/x.yaml", {"chart/test_chart": 3, "chart/test_folder": 3}),
        ("docs/guide.md", {}),
    ],
)  # fmt: skip
def test_steps_to_the_tests_of_a_file(
    graph: ImportGraph, file: str, expected: dict[str, int]
) -> None:
    assert graph.distances(file) == {f"tests/{name}.py": steps for name, steps in expected.items()}


def test_files_whose_tests_all_need_a_cluster_are_known(graph: ImportGraph) -> None:
    graph.distances("engine/atom/core.py")
    assert [test for test in graph.tests if graph.needs_cluster(test)] == [
        "tests/live/test_both.py", "tests/live/test_cluster.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("engine/atom/models/llama.py", "atom.models.llama"),
        ("operator/atom_operator/plan/__init__.py", "atom_operator.plan"),
        ("tests/engine/test_a.py", "tests.engine.test_a"),
        ("tools/check/__main__.py", "tools.check.__main__"),
        ("docs/conf.py", None),
        ("engine/atom/native/kernels.c", None),
    ],
)
def test_a_file_is_imported_by_its_name(file: str, module: str | None) -> None:
    assert module_of(file) == module


def test_every_source_file_of_the_checkout_has_tests(tmp_path: Path) -> None:
    """One file of sixty, as they are listed: each takes a walk over the graph."""
    root = Path(__file__).parents[3]
    graph = ImportGraph(root, tmp_path)
    sources = [
        path.relative_to(root).as_posix()
        for folder in ("engine/atom", "operator/atom_operator")
        for path in (root / folder).rglob("*.py")
    ]
    drawn = sorted(sources)[::60]
    assert len(drawn) > 15
    assert not [file for file in drawn if not graph.distances(file)]
