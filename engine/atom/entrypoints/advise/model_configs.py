"""Find a model's config.json, and the name of the model in a manifest. Reads files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atom.advisor.errors import AdviceError
from atom.bounded_input.bounded_json import SETTINGS, BoundedJsonError, parse_json

_HUB = "hf://"
# Of a model's name on the hub, its config.json; raises AtomError.
HubConfig = Callable[[str], Mapping[str, Any]]


def is_of_hub(name: str) -> bool:
    """Return whether a model is one of the hub."""
    return name.startswith(_HUB)


def config_of(flag: str, name: str, hub_config: HubConfig) -> Mapping[str, Any]:
    """Return a model's config.json: of the hub, of a file, or of its folder. flag: that named the
    model. Raises AtomError."""
    if is_of_hub(name):
        return hub_config(name.removeprefix(_HUB))
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = parse_json(path.read_text(encoding="utf-8"), SETTINGS)
    except (OSError, UnicodeError, BoundedJsonError) as error:
        raise AdviceError(
            f"{flag} {name}: {path} cannot be read as a config.json ({error}); give the file, its "
            f"folder, or hf://Org/Name"
        ) from error
    if not isinstance(config, dict):
        raise AdviceError(f"{flag} {name}: {path} must hold a JSON object, a model's config.json")
    return config


def label_of(name: str) -> str:
    """Return the name of a model for people."""
    return name.removeprefix(_HUB).rpartition("/")[2] if is_of_hub(name) else Path(name).stem


def source_of(name: str) -> str:
    """Return a model's source in a manifest: of a file, the folder of that name in an image."""
    if is_of_hub(name):
        return name
    file = Path(name).resolve()
    folder = file.parent.name if file.name == "config.json" else file.stem
    return f"path:///models/{folder}"
