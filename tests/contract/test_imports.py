"""Names resolve to the right modules, and what must stay light stays light."""

from __future__ import annotations

import operator
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import atom
import atom_operator

ROOT = Path(__file__).resolve().parents[2]

TORCH_FREE = [
    "atom",
    "atom.checkpoint",
    "atom.config",
    "atom.sampling_params",
    "atom.sizing",
    "atom.tokenizer",
    "atom.entrypoints.cli",
    "atom.entrypoints.flags.engine_args",
    "atom.entrypoints.server.run_server",
    "atom.entrypoints.api_server",
    "atom.model_engine.async_llm_engine",
    "atom.model_engine.batch",
    "atom.model_engine.block_manager",
    "atom.model_engine.blocks.block_pool",
    "atom.model_engine.engine_core_mgr",
    "atom.model_engine.wire.engine_protocol",
    "atom.model_engine.llm_engine",
    "atom.model_engine.request",
    "atom.model_engine.schedule.row_table",
    "atom.model_engine.scheduler",
    "atom.model_engine.sequence",
    "atom.model_engine.step_pipeline",
    "atom.model_engine.schedule.waiting_queue",
]


def test_operator_is_the_standard_librarys() -> None:
    assert operator.__file__ is not None
    assert Path(operator.__file__).parent == Path(sysconfig.get_paths()["stdlib"])
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_our_packages_are_ours() -> None:
    assert Path(str(atom.__file__)).is_relative_to(ROOT / "engine")
    assert Path(str(atom_operator.__file__)).is_relative_to(ROOT / "operator")


def test_these_modules_import_without_torch() -> None:
    """In one process: the error names the first module that imports torch."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(f'{name} imports torch')"
    )
    command = [sys.executable, "-c", code, *TORCH_FREE]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.whole
@pytest.mark.parametrize("module", TORCH_FREE)
def test_module_imports_alone_and_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_operator_imports_no_more_of_the_engine_than_its_sizing() -> None:
    code = (
        "import sys, atom_operator.reconcile.reconciler, atom_operator.__main__\n"
        "allowed = ('atom.sizing', 'atom.bounded_input')\n"
        "allowed = {'atom'} | {m for m in sys.modules if m.startswith(allowed)}\n"
        "extra = {m for m in sys.modules if m.split('.')[0] == 'atom'} - allowed\n"
        "sys.exit(', '.join(extra) or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonesuch'"):
        _ = atom.nonesuch
