"""What hypothesis draws in the daily run is the same in every process, clone and selection."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tests

ROOT = Path(tests.__path__[0]).parent
DRAW = """
import importlib, sys
import tests.conftest
for name in sys.argv[1:]:
    importlib.import_module(name)
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

drawn = []

@given(st.integers(), st.text(), st.floats(), st.binary())
def check(number, text, size, data):
    drawn.append((number, text, size, data))

class Machine(RuleBasedStateMachine):
    @rule(value=st.integers(), name=st.sampled_from(["a", "b"]))
    def one(self, value, name):
        drawn.append((value, name))

    @rule(text=st.text())
    def other(self, text):
        drawn.append(text)

check()
run_state_machine_as_test(Machine)
print(len(drawn), repr(drawn))
"""


def drawn(hash_seed: str, folder: Path, *modules: str) -> str:
    """What a process with these modules draws, in a checkout at `folder`."""
    paths = [str(folder / name) for name in ("engine", "operator", ".")]
    inherited = {name: value for name, value in os.environ.items() if name != "ATOM_TEST_SEEDS"}
    environment = {**inherited, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", DRAW, *modules]
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return ran.stdout


def test_every_process_of_every_clone_draws_the_same(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.symlink_to(ROOT)
    # Both have constants: in their code, that is, of which hypothesis makes draws otherwise.
    others = drawn("2", clone, "atom_operator.constants", "tools.check_file_size")
    assert drawn("1", ROOT) == others
    assert int(others.split()[0]) > 100
