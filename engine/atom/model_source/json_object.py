"""Read the JSON objects of a checkpoint's files, within bounds and with one error for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atom.bounded_input.bounded_json import LISTING, SETTINGS, JsonBounds, read_json_file
from atom.errors import ModelError


def read_json(file: Path, bounds: JsonBounds = SETTINGS) -> dict[str, Any]:
    """Read a JSON object within bounds. Raises `ModelError`."""
    try:
        content = read_json_file(file, bounds)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read as JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: must hold a JSON object; download it again")
    return content


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object that may be long, {} if there is no such file. Raises `ModelError`."""
    return read_json(file, LISTING) if file.is_file() else {}
