"""Programs of other people, at pinned versions, for the tests that let them work against the
server: coding agents from npm, and what tools.pinned_environments names of PyPI, into folders of
the user's cache, once.

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
class Agent:
    """A package of npm, and the command that it brings."""

    package: str
    version: str
    command: str

    @property
    def folder(self) -> Path:
        """Name the folder that it is installed in: another version has another."""
        name = self.package.rpartition("/")[2]
        return cache_folder() / f"{name}-{self.version}"

    @property
    def path(self) -> Path:
        return self.folder / "node_modules" / ".bin" / self.command


CLAUDE_CODE = Agent("@anthropic-ai/claude-code", "2.1.331", "claude")
CODEX = Agent("@openai/codex", "0.171.0", "codex")
OPENCODE = Agent("opencode-ai", "1.18.33", "opencode")
AGENTS = (CLAUDE_CODE, CODEX, OPENCODE)


def main() -> int:
    for agent in AGENTS:
        if not agent.path.exists():
            _install(agent)
    install_missing()
    return 0


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
