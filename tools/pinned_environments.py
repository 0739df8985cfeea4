"""Programs of PyPI at pinned versions, for the tests that let them work against the server: each
file of requirements/ that is named here is an environment of its own in the user's cache, since
they pin what the server's own has in other versions. A source distribution brings a client's tests.

`make agents` installs what is missing (tools.agents).
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

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
AGENTS, CLIENTS, LOAD, VLLM_BENCH, ROUTERS = "agents", "clients", "load", "vllm-bench", "routers"
GATEWAY, EVALUATION = "gateway", "evaluation"
S3_SERVER = "s3-server"
OPENAI_TESTS, ANTHROPIC_TESTS = "openai-tests", "anthropic-tests"
ENVIRONMENTS = (
    *(AGENTS, CLIENTS, LOAD, VLLM_BENCH, ROUTERS, GATEWAY, EVALUATION, S3_SERVER),
    *(OPENAI_TESTS, ANTHROPIC_TESTS),
)


def cache_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "atom-agents"


def python_bin(name: str) -> Path:
    """Name the folder of an environment's commands: other pins have another."""
    pins = hashlib.sha256(_pins(name).read_bytes()).hexdigest()[:12]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache_folder() / f"{name}-{python}-{pins}" / "bin"


@dataclass(frozen=True, slots=True)
class SourceDistribution:
    """A client's source with its tests, and the environment that runs them and pins it."""

    package: str
    environment: str

    @property
    def folder(self) -> Path:
        version = self.pin().partition("==")[2].split()[0]
        return self._made_in / f"{self.package}-{version}"

    @property
    def _made_in(self) -> Path:
        return python_bin(self.environment).parent / "source"

    def pin(self) -> str:
        """Read the lines that pin the package, with the hashes of its distributions."""
        text = _pins(self.environment).read_text()
        found = re.search(rf"^{self.package}(\[\w+\])?==(?:.*\\\n)*.*\n", text, re.MULTILINE)
        assert found is not None, f"requirements/{self.environment}.txt lacks {self.package}"
        return re.sub(r"^(\w+)\[\w+\]", r"\1", found.group())

    def fetch(self) -> None:
        """Fetch it as pip does, which holds it to its hash."""
        folder = self._made_in
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            pin = Path(made) / "pin.txt"
            pin.write_text(self.pin())
            python = python_bin(self.environment) / "python"
            command = [str(python), "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--no-binary", self.package, "--require-hashes"]
            subprocess.run([*command, "--requirement", str(pin), "--dest", made], check=True)
            (archive,) = Path(made).glob("*.tar.gz")
            with tarfile.open(archive) as source:
                source.extractall(folder, filter="data")


OPENAI_SOURCE = SourceDistribution("openai", OPENAI_TESTS)
ANTHROPIC_SOURCE = SourceDistribution("anthropic", ANTHROPIC_TESTS)
SOURCES = (OPENAI_SOURCE, ANTHROPIC_SOURCE)


def _pins(name: str) -> Path:
    return REQUIREMENTS / f"{name}.txt"


def install_missing() -> None:
    for name in ENVIRONMENTS:
        if not python_bin(name).exists():
            _install(python_bin(name).parent, _pins(name))
    for source in SOURCES:
        if not source.folder.exists():
            source.fetch()


def _install(folder: Path, pins: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        # Every dependency is in the file: what a file leaves out is not installed either.
        command = [str(uv), "pip", "install", "--quiet", "--require-hashes", "--no-deps"]
        command += ["--python", str(folder / "bin" / "python"), "--requirements", str(pins)]
        subprocess.run(command, check=True)
    except BaseException:  # whole or not at all
        shutil.rmtree(folder, ignore_errors=True)
        raise
