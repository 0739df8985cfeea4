"""The keys of which clients must send one: where a program takes them from.

Light to import: the command line reads it before any server is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from atom.errors import ConfigError

API_KEY_VARIABLE = "ATOM_API_KEY"

logger = logging.getLogger(__name__)


def read_api_keys(
    line: Sequence[str], file: Path | None, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Those of the command line, and the one of the file; without any, the environment's. Raises
    `ConfigError`."""
    if line:
        logger.warning(
            "--api-key: a key on the command line is seen by everybody on this machine (ps); use "
            "--api-key-file FILE or the variable %s",
            API_KEY_VARIABLE,
        )
    keys = [_checked("--api-key", text) for text in line]
    found = None if line and file is None else read_api_key(file, environment)
    return tuple(dict.fromkeys(keys if found is None else [*keys, found]))


def read_api_key(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The key from the file, else from the environment, else None. Raises `ConfigError`."""
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
    return _checked(source, text)


def _checked(source: str, text: str) -> str:
    key = text.strip()
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(
            f"{source}: must hold one key of printable ASCII characters without spaces"
        )
    return key
