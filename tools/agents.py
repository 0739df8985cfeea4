"""Programs of other people, at pinned versions, for the tests that let them work against the
server: coding agents and client libraries from npm, and the environments that
tools.pinned_environments names of PyPI, into folders of the user's cache, once.

python -m tools.agents    installs what is missing (make test-long)
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.pinned_environments import cache_folder, install_missing


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """A package of npm at a version; here a library that a program of the tests imports."""

    package: str
    version: str

    @property
    def folder(self) -> Path:
        """Name the folder that it is installed in: another version has another."""
        name = self.package.rpartition("/")[2]
        return cache_folder() / f"{name}-{self.version}"

    @property
    def path(self) -> Path:
        """Name the path that is there once the package is installed."""
        return self.folder / "node_modules" / self.package


@dataclass(frozen=True, slots=True)
class Agent(NpmPackage):
    """A package of npm that brings a command, which `path` names."""

    command: str

    @property
    def path(self) -> Path:
        return self.folder / "node_modules" / ".bin" / self.command


CLAUDE_CODE = Agent("@anthropic-ai/claude-code", "2.1.331", "claude")
CODEX = Agent("@openai/codex", "0.171.0", "codex")
OPENCODE = Agent("opencode-ai", "1.18.33", "opencode")
AGENTS = (CLAUDE_CODE, CODEX, OPENCODE)
OLLAMA_JS = NpmPackage("ollama", "0.6.4")
COHERE_JS = NpmPackage("cohere-ai", "8.1.0")
JS_CLIENTS = (OLLAMA_JS, COHERE_JS)


def main() -> int:
    for package in (*AGENTS, *JS_CLIENTS):
        if not package.path.exists():
            _install(package)
    install_missing()
    return 0


def _install(package: NpmPackage) -> None:
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(f"{package.package}: npm is not installed; install Node.js, which brings it")
    package.folder.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: an installation that was stopped is not taken for one.
    with tempfile.TemporaryDirectory(dir=package.folder.parent) as made:
        command = [npm, "install", "--prefix", made, "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*command, f"{package.package}@{package.version}"], check=True)
        Path(made).rename(package.folder)
        Path(made).mkdir()  # for its end


if __name__ == "__main__":
    sys.exit(main())
