"""Resolve the dependencies into hash-pinned files: `make lock`.

One file per environment that installs: the developer's, and each image's. The files name versions
and hashes only, never an index, so that they install from any mirror.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# File → extras of pyproject.toml. dev: every extra that a CPU machine can use.
LOCKS: dict[str, tuple[str, ...]] = {
    "dev": (
        *("engine", "conversion", "operator", "otel", "s3", "nixl", "test", "lint", "docs"),
        "release",
    ),
    "engine": ("engine", "conversion", "otel", "s3"),
    "operator": ("operator",),
}
# The developer's environment installs the project itself without downloading a build backend.
BUILD_BACKEND = {"dev": ("hatchling", "editables")}


def compile_lock(name: str, extras: tuple[str, ...]) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv if uv.exists() else "uv"), "pip", "compile", "--quiet", "--universal"]
    command += ["--generate-hashes", "--no-emit-index-url", "--no-annotate"]
    command += ["--python-version", "3.11", "--output-file", f"requirements/{name}.txt"]
    for extra in extras:
        command += ["--extra", extra]
    command += ["pyproject.toml", "-"]
    environment = {**os.environ, "UV_CUSTOM_COMPILE_COMMAND": "make lock"}
    backend = "\n".join(BUILD_BACKEND.get(name, ()))
    subprocess.run(command, cwd=ROOT, env=environment, input=backend, text=True, check=True)


def main() -> int:
    for name, extras in LOCKS.items():
        print(f"requirements/{name}.txt: {', '.join(extras)}", flush=True)
        compile_lock(name, extras)
    return 0


if __name__ == "__main__":
    sys.exit(main())
