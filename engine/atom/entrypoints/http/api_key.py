"""The key that clients must send: where a program takes it from.

Light to import: the command line reads it before any server is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from atom.errors import ConfigError

API_KEY_VARIABLE = "ATOM_API_KEY"


def read_api_key(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The key from the file, else from the environment, else None. Never an argument: those are
    seen by everybody on the machine. Raises `ConfigError`."""
    if file is None:
        source, text = f"the variable {API_KEY_VARIABLE}", environment.get(API_KEY_VARIABLE)
        if text is None:
            return None
    else:
        source = f"--api-key-file {file}"
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{source}: cannot be read ({error}); name a text file") from error
    key = text.strip()
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(
            f"{source}: must hold one key of printable ASCII characters without spaces"
        )
    return key
