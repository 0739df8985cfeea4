"""Remember per file what a check found, so that the next run reads only what changed.

The cache is `.cache/checks/TOOL.json` in the checkout. An entry holds while the file's text and the
tool's own source are the same, so a stale one is never used, and the folder may be deleted at will.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "checks"


def per_file(
    tool: Path, texts: Mapping[str, str], compute: Callable[[str, str], Any], cache: Path = CACHE
) -> dict[str, Any]:
    """Return `compute(path, text)` of each text, computed only if the text or the tool changed.

    tool: the source file of the check. The values must be what JSON holds: lists, texts, numbers
    and objects with texts as keys.
    """
    file = cache / f"{tool.stem}.json"
    version = f"{sys.version} {_digest(tool.read_text(encoding='utf-8'))}"
    known = _read(file, version)
    found = {}
    for path, text in texts.items():
        digest = _digest(text)
        entry = known.get(path)
        same = entry is not None and entry[0] == digest
        found[path] = entry if same and entry else [digest, compute(path, text)]
    if found != known:
        _write(file, {"version": version, "files": found})
    return {path: value for path, (_, value) in found.items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(file: Path, version: str) -> dict[str, list[Any]]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["version"] == version:
            return dict(stored["files"])
    return {}


def _write(file: Path, content: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a checkout that cannot be written to
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.with_suffix(f".{os.getpid()}")
        whole.write_text(json.dumps(content), encoding="utf-8")
        whole.replace(file)
