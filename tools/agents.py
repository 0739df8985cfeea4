"""Coding agents of other people, at pinned versions, for the tests that let them work against the
server: from npm and PyPI into folders of the user's cache, once.

python -m tools.agents    installs what is missing (make test-long)
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
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
# Those of PyPI pin what the server's environment has in other versions, so they have one of theirs.
PYTHON_AGENTS = Path(__file__).parents[1] / "requirements" / "agents.txt"


def python_bin() -> Path:
    """Name the folder of the commands of `PYTHON_AGENTS`: other pins have another environment."""
    pins = hashlib.sha256(PYTHON_AGENTS.read_bytes()).hexdigest()[:12]
    return _cache() / f"python-{sys.version_info.major}.{sys.version_info.minor}-{pins}" / "bin"


def main() -> int:
    for agent in AGENTS:
        if not agent.path.exists():
            _install(agent)
    if not python_bin().exists():
        _install_python(python_bin().parent)
    return 0


def _install_python(folder: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        command = [uv, "pip", "install", "--quiet", "--require-hashes"]
        command += ["--python", folder / "bin" / "python", "--requirements", PYTHON_AGENTS]
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
