"""LoRA adapters of a command line, in the two forms of vLLM and SGLang, to spec.adapters. Pure.

The engine reads the same forms (`atom.lora_config`): NAME=PATH, or a JSON object with name and
path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from atom_operator.importing.model_source import Mounts, adapter_source
from atom_operator.importing.results import Result, Setting, left

_REMEDY = "give it as hf://ORG/NAME, pvc://CLAIM/FOLDER or path:///FOLDER in spec.adapters"


def adapter_results(text: str, where: str, mounts: Mounts | None = None) -> Iterator[Result]:
    """Translate one adapter of --lora-modules."""
    name, _, path = text.partition("=")
    if text.lstrip().startswith("{"):
        name, path = _of_json(text)
    yield from adapter(name, path, where, mounts)


def adapter(name: str, location: str, where: str, mounts: Mounts | None = None) -> Iterator[Result]:
    """Translate an adapter by its name and location."""
    source = adapter_source(location, mounts)
    if not name or source is None:
        yield left(where, f"adapter {name or 'without a name'}: no such location here; {_REMEDY}")
        return
    yield Setting("engine.lora", {}, where)
    yield Setting("adapters", [{"name": name, "source": source}], where)


def _of_json(text: str) -> tuple[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        return "", ""
    if not isinstance(found, dict):
        return "", ""
    return str(found.get("name") or ""), str(found.get("path") or "")
