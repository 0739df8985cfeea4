"""Read the settings of generation: those of the checkpoint, of another folder or none, with the
fields that the options override. Called by `build_config`; knows no sampling parameter's range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atom.checkpoint import GENERATION_FILE, Checkpoint
from atom.config_values import GENERATION_FIELDS
from atom.errors import ConfigError
from atom.model_source.json_object import read_json
from atom.sizing.options.model import CheckpointOptions


def read_generation_config(options: CheckpointOptions, checkpoint: Checkpoint) -> dict[str, Any]:
    """Read the generation settings. Raises `ConfigError` for a missing file or an unknown field."""
    source, found = options.generation_config, checkpoint.generation_config
    if source == "vllm":
        found = {}
    elif source != "auto":
        file = Path(source).expanduser() / GENERATION_FILE
        if not file.is_file():
            raise ConfigError(
                f"generation_config {source}: there is no {file}; give auto, vllm for none, or a "
                f"folder with that file"
            )
        found = read_json(file)
    override = dict(options.override_generation_config or {})
    unknown = sorted(override.keys() - {*GENERATION_FIELDS, "do_sample"})
    if unknown:
        raise ConfigError(
            f"override_generation_config: {', '.join(unknown)} is no sampling default here; use "
            f"{', '.join(GENERATION_FIELDS)}"
        )
    return found | ({"do_sample": True} if override else {}) | override
