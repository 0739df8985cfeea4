"""What other servers take: request fields and flags, one a line under a head with the version."""

from __future__ import annotations

from pathlib import Path

FIELD_LISTS = ("openai", "vllm", "sglang", "llama_cpp")
FLAG_LISTS = ("vllm", "sglang", "atom")
_FOLDER = Path(__file__).parent


def fields_of(peer: str) -> list[tuple[str, str]]:
    """(endpoint, path) of each."""
    lines = _lines(f"{peer}_fields.txt")
    return [(endpoint, path) for endpoint, _, path in (line.partition(" ") for line in lines)]


def flags_of(peer: str) -> list[str]:
    return _lines(f"{peer}_flags.txt")


def _lines(name: str) -> list[str]:
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]
