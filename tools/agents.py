"""Coding agents of other people, at pinned versions, for the tests that let them work against the
server: from npm and PyPI into folders of the user's cache, once.

python -m tools.agents    installs what is missing (make test-long)
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "atom-agents"


@dataclass(frozen=True, slots=True)
class Agent:
    """A package of npm, and the command that it brings."""

    package: str
    version: str
    command: str

    @property
    def folder(self) -> Path:
        """Name the folder that it is installed in: another version has another."""
        name = self.package.rpartition("/")[2]
        return _cache() / f"{name}-{self.version}"

    @property
    def path(self) -> Path:
        return self.folder / "node_modules" / ".bin" / self.command


CLAUDE_CODE = Agent("@anthropic-ai/claude-code", "2.1.331", "claude")
CODEX = Agent("@openai/codex", "0.171.0", "codex")
OPENCODE = Agent("opencode-ai", "1.18.33", "opencode")
AGENTS = (CLAUDE_CODE, CODEX, OPENCODE)
REQUIREMENTS = Path(__file__).parents[1] / "requirements"
# Those of PyPI pin what the server's environment has in other versions, so they have their own.
PYTHON_AGENTS, OPENAI_TESTS = "agents", "openai-tests"


def python_bin(name: str = PYTHON_AGENTS) -> Path:
    """Name the folder of the commands of a file of `REQUIREMENTS`: other pins have another."""
    pins = hashlib.sha256(_pins(name).read_bytes()).hexdigest()[:12]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return _cache() / f"{name}-{python}-{pins}" / "bin"


def openai_tests() -> Path:
    """Name the folder of openai-python's source distribution, which has its tests."""
    return python_bin(OPENAI_TESTS).parent / "source" / f"openai-{_openai_version()}"


def _pins(name: str) -> Path:
    return REQUIREMENTS / f"{name}.txt"


def _openai_pin() -> str:
    """Read the lines that pin openai-python, with the hashes of its distributions."""
    text = _pins(OPENAI_TESTS).read_text()
    found = re.search(r"^openai(\[aiohttp\])?==(?:.*\\\n)*.*\n", text, re.MULTILINE)
    assert found is not None
    return found.group().replace("[aiohttp]", "")


def _openai_version() -> str:
    return _openai_pin().partition("==")[2].split()[0]


def main() -> int:
    for agent in AGENTS:
        if not agent.path.exists():
            _install(agent)
    for name in (PYTHON_AGENTS, OPENAI_TESTS):
        if not python_bin(name).exists():
            _install_python(python_bin(name).parent, _pins(name))
    if not openai_tests().exists():
        _fetch_openai_source()
    return 0


def _fetch_openai_source() -> None:
    """Fetch it as pip does, which holds it to its hash."""
    folder = openai_tests().parent
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        pin = Path(made) / "pin.txt"
        pin.write_text(_openai_pin())
        command = [str(python_bin(OPENAI_TESTS) / "python"), "-m", "pip", "download", "--quiet"]
        command += ["--no-deps", "--no-binary", "openai", "--require-hashes"]
        subprocess.run([*command, "--requirement", str(pin), "--dest", made], check=True)
        (archive,) = Path(made).glob("*.tar.gz")
        with tarfile.open(archive) as source:
            source.extractall(folder, filter="data")


def _install_python(folder: Path, pins: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [str(uv), "pip", "install", "--quiet", "--require-hashes"]
        command += ["--python", str(folder / "bin" / "python"), "--requirements", str(pins)]
        subprocess.run(command, check=True)
    except BaseException:  # whole or not at all
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _install(agent: Agent) -> None:
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(f"{agent.package}: npm is not installed; install Node.js, which brings it")
    agent.folder.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: an installation that was stopped is not taken for one.
    with tempfile.TemporaryDirectory(dir=agent.folder.parent) as made:
        command = [npm, "install", "--prefix", made, "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*command, f"{agent.package}@{agent.version}"], check=True)
        Path(made).rename(agent.folder)
        Path(made).mkdir()  # for its end


if __name__ == "__main__":
    sys.exit(main())
