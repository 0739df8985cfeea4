"""--fairness-weights: a file that gives some clients more of the engine than others.

    {"header:team-a": 4, "addr:10.0.0.5": 2, "key-1a2b3c4d5e6f": 0.5}

A client is named by what it goes by (`header:`, `addr:` or `key:`) or by its label in /metrics.
Light to import.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from atom.client_label import KINDS, address_name, client_label
from atom.errors import ConfigError

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0
_LABEL = re.compile(rf"(?:{'|'.join(KINDS)})-[0-9a-f]{{12}}|key-[A-Za-z0-9._-]{{1,48}}")


def read_client_weights(file: Path | None) -> dict[str, float]:
    """Read the clients' weights by label from a JSON file. Raises `ConfigError`."""
    if file is None:
        return {}
    source = f"--fairness-weights {file}"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(f'{source}: must hold one object, such as {{"header:team-a": 4}}')
    return {_label(name, source): _weight(name, value, source) for name, value in content.items()}


def _label(name: str, source: str) -> str:
    if _LABEL.fullmatch(name):
        return name
    kind, found, rest = name.partition(":")
    if not found or kind not in KINDS or not rest:
        # Not the name itself: it may be a key.
        raise ConfigError(
            f"{source}: a client is named header:VALUE, addr:ADDRESS, key:KEY or by its label in "
            f"/metrics, such as key-1a2b3c4d5e6f; one of {len(name)} characters is none of these"
        )
    return client_label(kind, address_name(rest) if kind == "addr" else rest)


def _weight(name: str, value: Any, source: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not LEAST_WEIGHT <= value <= MOST_WEIGHT
    ):
        kind = name[: min(map(len, KINDS))]
        raise ConfigError(
            f"{source}: the weight of a client ({kind}…) is {value!r}; give a number from "
            f"{LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
        )
    return float(value)
