"""The program that krew installs as kubectl-atom: one installation, then the command itself.

A stand-in for Python records the calls and makes the environment that venv and pip would make; the
real ones are run from a release by test_published_release.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.release.krew import LAUNCHER, PROGRAM

ROOT = Path(__file__).parents[3]
WHEEL = "atom_platform-0.1.0-py3-none-any.whl"
_PYTHON = """\
#!/bin/sh
echo "$@" >> "$CALLS"
case "$1 $2" in
"-c import"*) exit ${TOO_OLD:-0} ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip")
    [ -z "${OFFLINE:-}" ] || { echo "no route to the index"; exit 1; }
    printf '#!/bin/sh\\necho "ran $*"\\n' > "$(dirname "$0")/kubectl-atom"
    chmod +x "$(dirname "$0")/kubectl-atom" ;;
esac
"""


class Installed:
    """The plug-in as krew lays it out: a link in a folder of the PATH to the unpacked archive."""

    def __init__(self, folder: Path) -> None:
        store, self.bin = folder / "store/atom/v0.1.0", folder / "bin"
        store.mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / LAUNCHER, store / PROGRAM)
        (store / "requirements.txt").write_text("msgspec==0.1 --hash=sha256:0\n")
        (store / WHEEL).write_bytes(b"")
        (self.bin / PROGRAM).symlink_to(store / PROGRAM)
        python = self.bin / "python3"
        python.write_text(_PYTHON)
        python.chmod(0o755)
        self.calls, self.data = folder / "calls", folder / "data"

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.bin}:{os.defpath}",
            "HOME": "/nonexistent",
            "XDG_DATA_HOME": str(self.data),
            "CALLS": str(self.calls),
        }
        return subprocess.run(
            [self.bin / PROGRAM, *words],
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def installations(self) -> int:
        text = self.calls.read_text() if self.calls.exists() else ""
        return sum("-m venv" in line for line in text.splitlines())


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def test_the_first_run_installs_by_hashes_and_the_next_run_does_not(installed: Installed) -> None:
    first = installed.run("plan", "-f", "a file.yaml")
    assert (first.returncode, first.stdout) == (0, "ran plan -f a file.yaml\n")
    assert "installing its packages" in first.stderr
    calls = installed.calls.read_text()
    assert "--require-hashes --requirement" in calls
    assert f"--no-deps {installed.bin.parent}/store/atom/v0.1.0/{WHEEL}" in calls
    second = installed.run("why", "chat")
    assert (second.stdout, second.stderr) == ("ran why chat\n", "")
    assert installed.installations() == 1


def test_an_installation_that_fails_is_an_error_and_is_repeated(installed: Installed) -> None:
    failed = installed.run("status", OFFLINE="1")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.splitlines()[-1].startswith("error: the packages cannot be installed")
    assert installed.run("status").stdout == "ran status\n"
    assert installed.installations() == 2


def test_a_machine_without_a_new_python_gets_the_remedy(installed: Installed) -> None:
    found = installed.run("status", TOO_OLD="1", KUBECTL_ATOM_PYTHON="python3")
    assert found.returncode == 1
    assert "needs Python 3.11 or newer" in found.stderr
    assert "KUBECTL_ATOM_PYTHON" in found.stderr
