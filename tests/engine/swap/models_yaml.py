"""Files of --models, and what `atom serve` makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from atom.entrypoints.cli import build_parser
from atom.entrypoints.serve_options import models_of
from atom.entrypoints.swap.models_process import ServedModel


def write_models(folder: Path, names: Sequence[str]) -> Path:
    """Write a file of models, each in a folder of its name, the first one pinned: there is room for
    that and one of the others."""
    entries = [
        {
            "name": name,
            "model": str(folder / name),
            "pinned": name == names[0],
            "options": {"gpu_memory_utilization": 0.4, "num-kv-blocks": 100},
        }
        for name in names
    ]
    file = folder / "models.yaml"
    file.write_text(yaml.safe_dump(entries))
    return file


def models_in(file: Path, *words: str) -> list[ServedModel]:
    """What a line with this file serves."""
    line = ["serve", "--models", str(file), "--device", "cpu", "--port", "0", *words]
    return models_of(build_parser().parse_args(line))
