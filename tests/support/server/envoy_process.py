"""Envoy as a process, at its pinned version."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.engine.agents.session import check_installed
from tools.pinned_environments import GATEWAY, python_bin

_ROOT = Path(__file__).resolve().parents[3]


def written(document: Mapping[str, Any], folder: Path) -> Path:
    """A configuration, as the file that Envoy reads."""
    config = folder / "envoy.yaml"
    config.write_text(yaml.safe_dump(document))
    return config


@contextmanager
def envoy_process(config: Path, *flags: str, inside: Sequence[str] = ()) -> Iterator[None]:
    """Ends with the block; its log is beside `config`. `inside`: a command that runs another, as in
    a network of its own."""
    program, folder = python_bin(GATEWAY) / "envoy", config.parent
    check_installed(program)
    command = [*inside, program, "--config-path", config, "--base-id-path", folder / "base-id"]
    with (folder / "envoy.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--use-dynamic-base-id", "--concurrency", "1", *flags],
            cwd=_ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()
