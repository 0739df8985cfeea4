"""`--models FILE`: the models of one server, and their flags.

    - name: chat
      model: Qwen/Qwen3-8B
      pinned: true
      options: {gpu-memory-utilization: 0.4, max-model-len: 32k}
    - name: code
      model: /models/coder
      options: {gpu-memory-utilization: 0.5}

Each entry is a line of `atom serve` for its model: the server's own line, with the entry's options
behind, which win.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.entrypoints.swap.swap_policy import ROUNDING
from atom.errors import ConfigError

_KEYS = ("name", "model", "pinned", "options")
# Options of the one HTTP server, which all models share.
SERVERS_OWN = frozenset(
    {
        "models", "model", "served-model-name", "host", "port", "server-port", "api-server-count",
        "api-key", "api-key-file", "config", "root-path", "allowed-origins", "ssl-certfile",
        "ssl-keyfile", "enable-sleep-mode", "sleep-queue", "log-level", "drain-seconds",
        "body-memory-mib", "responses-store-mib", "swap-wait-seconds", "swap-least-awake-seconds",
        "swap-drain-seconds",
        "lora-modules-file", "otlp-traces-endpoint", "fairness-header", "max-waiting-requests",
        "request-timeout-seconds", "startup-budget-seconds", "disable-console", "verbose",
        "enable-tokenizer-info-endpoint", "batch-dir", "batch-storage-mib", "batch-file-mib",
        "batch-max-lines", "batch-max-files", "batch-concurrency",
        "timeout-keep-alive", "disable-access-log", "reader-timeout-seconds",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """Describe a model of the file. options: its own flags, by name without leading dashes."""

    name: str
    model: str
    pinned: bool
    options: Mapping[str, Any]


def read_models_file(file: Path) -> list[ModelEntry]:
    """Read and check a file's entries. Raises `ConfigError`."""
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--models {file}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--models {file}: is no YAML ({error})") from error
    if not isinstance(found, list) or not found:
        raise ConfigError(f"--models {file}: must hold a list of models, each with name and model")
    entries = [_entry(f"--models {file}: [{index}]", each) for index, each in enumerate(found)]
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--models {file}: two models are called {name}; rename one")
    return entries


def check_shares(file: Path, shares: Sequence[tuple[ModelEntry, float]], capacity: float) -> None:
    """Raise `ConfigError` for models that could never be awake beside the pinned ones. shares: of
    the device's memory, by model; capacity: of all that are awake."""
    pinned = sum(share for entry, share in shares if entry.pinned)
    for entry, share in shares:
        beside = pinned - share if entry.pinned else pinned
        if beside + share > capacity + ROUNDING:
            others = f" beside {beside:g} of the pinned ones" if beside else ""
            raise ConfigError(
                f"--models {file}: {entry.name} takes gpu-memory-utilization {share:g}{others}, "
                f"and the server has {capacity:g}; give it a smaller one in its options, pin "
                "fewer, or start the server with a larger --gpu-memory-utilization"
            )


def check_names(file: Path, names: Sequence[Sequence[str]]) -> None:
    """Raises `ConfigError` for a name that two models or adapters have. names: of each model, its
    own and its adapters'."""
    seen: set[str] = set()
    for own in names:
        for name in own:
            if name in seen:
                raise ConfigError(
                    f"--models {file}: two models or adapters are called {name}, and requests "
                    "choose by the name; rename one"
                )
            seen.add(name)


def _entry(place: str, found: Any) -> ModelEntry:
    if not isinstance(found, dict):
        raise ConfigError(f"{place}: must hold name and model, got {found!r}")
    unknown = sorted(str(key) for key in found.keys() - set(_KEYS))
    if unknown:
        raise ConfigError(f"{place}: {unknown[0]} is unknown; an entry has {', '.join(_KEYS)}")
    name, model = found.get("name"), found.get("model")
    for key, value in (("name", name), ("model", model)):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{place}: {key} must be a text, got {value!r}")
    pinned, options = found.get("pinned", False), found.get("options") or {}
    if not isinstance(pinned, bool):
        raise ConfigError(f"{place}: pinned must be true or false, got {pinned!r}")
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise ConfigError(f"{place}: options must hold flag: value, got {options!r}")
    kebab = {key.replace("_", "-"): value for key, value in options.items()}
    own = sorted(kebab.keys() & SERVERS_OWN)
    if own:
        raise ConfigError(f"{place}: options: {own[0]} is the whole server's; give it on the line")
    return ModelEntry(str(name), str(model), pinned, kebab)
